"""Sampling fields that cannot be followed with some of a row's log-probabilities."""

from __future__ import annotations

from typing import Final

from slipstream.errors import FieldViolation
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling_fields import SAMPLING_FIELDS

_REASONS: Final = {
    "repetition_penalty": "multiplies raw logits, and the server returns normalised log-probabilities",
    "top_n_sigma": "needs the spread of all logits, and the server returns some of them",
    "typical_p": "needs the entropy of all tokens, and the server returns some of them",
}


def refused_fields(rule: SamplingRule) -> list[FieldViolation]:
    """Return the fields of a rule that must be off behind a stock engine, each with the reason."""
    refused = [
        FieldViolation(name, f"must be {SAMPLING_FIELDS[name].off:g} (off) with this target: it {reason}")
        for name, reason in _REASONS.items()
        if getattr(rule, name) != SAMPLING_FIELDS[name].off and _matters(rule, name)
    ]
    if rule.draws_ratios:
        refused.append(
            FieldViolation(
                "acceptance",
                "must be coupled with this target: the ratio test needs every token's probability, "
                "and the server returns some of them",
            )
        )
    return refused


def _matters(rule: SamplingRule, name: str) -> bool:
    """Return whether a field changes a choice: a greedy one passes no filter."""
    return rule.temperature > 0 or name == "repetition_penalty"
