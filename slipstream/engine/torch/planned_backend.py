"""The backend of models that compute a step from a plan, over pages: transformers' own classes on
CPUs and CUDA."""

from __future__ import annotations

from typing import Protocol

import torch

from slipstream.engine.errors import STOCK_ENGINES, UnsupportedModelError
from slipstream.engine.hidden_heads import HiddenStates
from slipstream.engine.model import ModelFacts, MultiStepRunner, Reserved, Segment
from slipstream.engine.pages import PADDING_PAGE, pages_in
from slipstream.engine.sequence import PageCopy
from slipstream.engine.torch.host_logits import host_logits
from slipstream.engine.torch.plan import BATCH_INVARIANT, FIRST_KEYS, KEY_BLOCK, Padding, StepPlan, build_plan
from slipstream.engine.torch.row_trial import see_rows_alone
from slipstream.processors import own_processors
from slipstream.sampling.blocks import Logits


class PlanModel(ModelFacts, Protocol):
    """A model that takes plans and returns logits."""

    settled_after: int

    @property
    def hidden_states(self) -> HiddenStates:
        """The hidden states of forwards, for heads."""

    @property
    def device(self) -> torch.device:
        """Device of the model's memory."""

    bytes_per_token: int
    """KV bytes of one token over all layers."""

    def reserve(self, page_count: int, page_size: int) -> int:
        """Reserve KV memory for that many pages. Returns its bytes."""

    def copy_pages(self, copies: list[PageCopy]) -> None:
        """Copy whole pages, in order."""

    def erase_pages(self, pages: list[int]) -> None:
        """Overwrite pages with zeros: a masked key must still be a finite number. Raises at once
        what the device raises, if it can no longer compute."""

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Return logits ``[plan.logit_count, vocabulary]`` at the plan's wanted rows, in the
        model's dtype."""


class PlannedBackend:
    """`Backend` of a model that computes from a plan, with a padding rule."""

    multi_step_runner: MultiStepRunner | None = None
    multi_step = True
    pads_sequences = False
    warmed_lengths: tuple[int, ...] = (FIRST_KEYS + 1, FIRST_KEYS + KEY_BLOCK + 1)

    def __init__(
        self, model: PlanModel, *, page_size: int = 16, padding: Padding = BATCH_INVARIANT, on_trial: bool = False
    ) -> None:
        """Wrap a model. UnsupportedModelError if the page size does not fit. ``on_trial`` sees at
        load whether its rows depend on one another."""
        if FIRST_KEYS % page_size:
            raise UnsupportedModelError(f"page_size must divide {FIRST_KEYS}, but is {page_size}")
        self.model = model
        self.mark = padding.mark
        self.row_multiple = padding.rows(2)
        self.single_rows = padding.single_row  # only a draft's rows may stay unpadded
        self.settled_after = model.settled_after
        self.hidden_states: HiddenStates | None = model.hidden_states
        self.processors = own_processors(torch.get_num_threads() if model.device.type == "cpu" else 0)
        self._page_size = page_size
        self._padding = padding
        self._on_trial = on_trial
        self._slot_count = 0

    def reserve(self, memory_mib: float) -> Reserved:
        page_count = pages_in(memory_mib, self.model.bytes_per_token * self._page_size)
        self._slot_count = (page_count + 1) * self._page_size  # with the padding page
        reserved = Reserved(page_count, self._page_size, self.model.reserve(page_count, self._page_size))
        if self._on_trial:
            see_rows_alone(self, reserved, f"try --dtype bfloat16, or {STOCK_ENGINES}")
        return reserved

    def copy_pages(self, copies: list[PageCopy]) -> None:
        self.model.copy_pages(copies)

    def erase_pages(self, pages: list[int]) -> None:
        self.model.erase_pages([PADDING_PAGE, *pages])

    def forward(self, segments: list[Segment]) -> Logits:
        return host_logits(self.model.forward(self._plan(segments)))

    def _plan(self, segments: list[Segment]) -> StepPlan:
        return build_plan(segments, self._page_size, self.model.device, self._padding, self._slot_count)
