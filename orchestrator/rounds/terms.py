"""What a turn's rounds are run under."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.speculation.session import SpeculationSettings
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import SamplingRule


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """The rule that chooses tokens, how much to speculate, and which log-probabilities to bring;
    None for none."""

    rule: SamplingRule
    speculation: SpeculationSettings
    logprobs: LogprobRequest | None = None
