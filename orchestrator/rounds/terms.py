"""The terms of a turn's rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.speculation.settings import SpeculationSettings
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import SamplingRule

LEAD = 128
"""Tokens of a usual turn's `RoundTerms.lead`: more than a verifier chooses in a round trip."""

LEAD_BEFORE_STOP_STRINGS = 16
"""The same if stop strings may end the turn at any token."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens that the caller expects in the answer."""

    tokens: Sequence[int]
    source_id: int
    """Id of the caller among the sources of predictions."""


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """The rule that chooses tokens, how much to speculate, and which log-probabilities to bring;
    None for none."""

    rule: SamplingRule
    speculation: SpeculationSettings
    logprobs: LogprobRequest | None = None
    lead: int = LEAD
    """Tokens that the target may choose beyond those that were received. They are lost if the turn
    ends before them."""
    prediction: Prediction | None = field(default=None, repr=False)
    """Never stored: the text is the same without it."""
    do_not_collect: bool = False
    """True if a verifier that collects has to leave the session's sequence out."""
