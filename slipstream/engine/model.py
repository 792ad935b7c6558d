"""The protocol every model stands behind: plans in, logits out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from slipstream.engine.plan import StepPlan
from slipstream.engine.sequence import PageCopy
from slipstream.sampling.rule import SamplingDefaults

Choose = Callable[[torch.Tensor], list[int] | None]
"""Takes a step's logits ``[sequences, vocabulary]``, which the next step may overwrite; gives each sequence's next token, or
None to end."""


class Model(Protocol):
    """A model and its KV memory, as the engine drives it: plans in, logits out."""

    architecture: str
    vocabulary_size: int
    context_length: int
    end_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    dtype: str
    device: torch.device
    weights_fingerprint: str
    """Two models with the same one answer alike, given the same dtype and kind of device."""
    bytes_per_token: int
    """KV bytes one token takes over all layers."""

    settled_after: int
    """Forwards of one shape, from the first, after which another one takes as long as it will."""

    def reserve(self, page_count: int, page_size: int) -> int:
        """Reserve KV memory for that many pages; returns its bytes."""

    def copy_pages(self, copies: list[PageCopy]) -> None:
        """Copy whole pages, in order."""

    def erase_pages(self, pages: list[int]) -> None:
        """Overwrite pages with zeros: what they hold cannot be trusted, and a masked key must still be a finite number. Raises
        what the device raises, at once, if it cannot compute any more."""

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits ``[plan.logit_count, vocabulary]`` at the plan's wanted rows, in the model's dtype."""

    def run_on(self, plan: StepPlan, choose: Choose) -> None:
        """Step after step until ``choose`` ends them: first the plan, whose segments have one token each and room for more,
        then each segment's next token."""


def run_by_forwards(forward: Callable[[StepPlan], torch.Tensor], plan: StepPlan, choose: Choose) -> None:
    """`Model.run_on` by ``forward``."""
    while (tokens := choose(forward(plan))) is not None:
        plan.advance(tokens)
