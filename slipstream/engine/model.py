"""The protocol every model stands behind: plans in, logits out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from slipstream.engine.plan import StepPlan
from slipstream.engine.sequence import PageCopy
from slipstream.sampling.rule import SamplingDefaults

Choose = Callable[[int, torch.Tensor], int | None]
"""Takes a row's index and its logits ``[1, vocabulary]``; gives the token of the next row, or None to end."""


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

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits ``[plan.logit_count, vocabulary]`` at the plan's wanted rows, in the model's dtype."""

    def forward_one_by_one(self, plan: StepPlan, token: int, choose: Choose) -> None:
        """The rows of a plan of one segment as forwards of their own, until ``choose`` ends them. Row 0 is ``token``, each
        other one what was chosen after the row before it; the segment's own tokens do not count."""


def run_one_by_one(forward: Callable[[StepPlan], torch.Tensor], plan: StepPlan, token: int, choose: Choose) -> None:
    """`Model.forward_one_by_one` by ``forward``."""
    following = token
    for index in range(plan.slots.shape[0]):
        chosen = choose(index, forward(plan.one_row(index, following)))
        if chosen is None:
            return
        following = chosen
