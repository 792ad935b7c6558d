"""Sampling fields that cannot be followed with some of a row's log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from slipstream.errors import FieldViolation
from slipstream.sampling.rule import SamplingDefaults, SamplingRule
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


def without_refused(defaults: SamplingDefaults) -> tuple[SamplingDefaults, list[str]]:
    """Return a model's own sampling parameters without those that a rule must have off, and a
    sentence about each of them. Otherwise every request would have to turn them off."""
    left_out: dict[str, Any] = {
        name: SAMPLING_FIELDS[name].off for name in _REASONS if getattr(defaults, name) != SAMPLING_FIELDS[name].off
    }
    told = [
        f"the model's own {name} of {getattr(defaults, name):g} is not applied: it {_REASONS[name]}"
        for name in left_out
    ]
    return replace(defaults, **left_out), told


def _matters(rule: SamplingRule, name: str) -> bool:
    """Return whether a field changes a choice: a greedy one passes no filter."""
    return rule.temperature > 0 or name == "repetition_penalty"
