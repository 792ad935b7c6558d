"""What a turn asks of sampling. Never imports torch: the orchestrator validates and resolves with it."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.errors import FieldViolation

MAX_SEED = 2**63 - 1
MIN_TEMPERATURE = 1e-6  # below, dividing by it overflows
MAX_TEMPERATURE = 100.0


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """A model's own sampling parameters, from its generation config. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """The rule by which the target chooses the tokens of one turn, with nothing left open.

    ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off. ``end_token_ids`` are not chosen at
    absolute positions before ``first_end_position``.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    end_token_ids: tuple[int, ...] = ()
    first_end_position: int = 0


def sampling_violations(rule: SamplingRule) -> list[FieldViolation]:
    """What is wrong with a rule; empty if nothing is. NaN is never right."""
    checks = (
        (
            "temperature",
            rule.temperature == 0 or MIN_TEMPERATURE <= rule.temperature <= MAX_TEMPERATURE,
            f"must be 0 (greedy) or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}",
        ),
        ("top_k", rule.top_k >= 0, "must be 0 (off) or more"),
        ("top_p", 0 < rule.top_p <= 1, "must be above 0 and at most 1"),
        ("min_p", 0 <= rule.min_p <= 1, "must be from 0 to 1"),
        ("seed", 0 <= rule.seed <= MAX_SEED, "must be from 0 to 2^63 - 1"),
    )
    return [
        FieldViolation(name, f"{requirement}, but is {getattr(rule, name)}")
        for name, right, requirement in checks
        if not right
    ]
