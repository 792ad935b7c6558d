"""A row of logits and everything its choice depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.sampling.outcome import TokenDistribution, TokenLogprobs
from slipstream.sampling.rule import SamplingRule

Mask = NDArray[np.bool_]
VOID = -1


@dataclass(frozen=True, slots=True)
class Proposed:
    """A draft's token and the distribution it was drawn from."""

    token: int
    distribution: TokenDistribution


@dataclass(slots=True)
class Row:
    """A row of logits, which chooses the token at absolute ``position``, by ``rule``, after
    ``context[:position]``.

    ``allowed`` is what the rule's structure allows here. Under a structure a row without it is
    void: it comes after a speculated token that breaks the structure. ``proposed`` is the token to
    accept or replace under the ratio test; ``drafting`` says that the draft itself draws, under the
    ratio test with its distribution, and else with its ``candidate_count`` likeliest tokens.
    """

    rule: SamplingRule
    position: int
    context: Sequence[int] = ()
    allowed: Mask | None = None
    proposed: Proposed | None = None
    drafting: bool = False
    candidate_count: int = 0

    @property
    def is_void(self) -> bool:
        """True if nothing can be chosen here."""
        return self.allowed is None and self.rule.structure is not None

    @property
    def is_processed(self) -> bool:
        """True if the rule changes the row's logits before sampling."""
        return self.position < self.rule.first_end_position or self.allowed is not None or self.rule.changes_logits


@dataclass(slots=True)
class Choice:
    """A chosen token and its ``margin``, its lead over the next best; infinite where nothing else
    was asked.

    Where it was drawn the lead is one of perturbed logits, over what a top-p does not keep too, and
    a target's choice says of a lead above `slipstream.sampling.coupled.SLACK` only that much. The
    choice of a void row is `VOID`: it must not be used. So is that of a row with a ``fault``, which
    says why there is none. ``distribution`` is what it was drawn from, where a draft draws for the
    ratio test; ``logprobs`` come if asked for. A draft's own choice has its ``logprob`` among what
    the filters left, and ``candidates``, where asked for: the likeliest tokens to be chosen here
    and their perturbed logits, best first, the choice itself among them.
    """

    token: int
    margin: float
    logprob: float = 0.0
    candidates: tuple[tuple[int, float], ...] = ()
    distribution: TokenDistribution | None = None
    logprobs: TokenLogprobs | None = None
    fault: Exception | None = None
