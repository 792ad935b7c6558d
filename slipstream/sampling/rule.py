"""What a turn asks of sampling. Never imports torch: the orchestrator validates and resolves with
it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FieldViolation
from slipstream.sampling.structure import Structure

SAMPLING_VERSION = 2
"""Of how tokens are chosen: noise, filters and their order. A seed's text changes when it does, and
must not without it."""

MAX_SEED = 2**63 - 1
MIN_TEMPERATURE = 1e-6
"""Below, dividing by it may overflow."""
MAX_TEMPERATURE = 100.0
MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
"""Logits are multiplied or divided by it, and then divided by the temperature: all of that must
stay finite."""
MAX_LOGIT_BIAS = 100.0
DEFAULT_PROPOSAL_TOP_K = 64
MAX_PROPOSAL_TOP_K = 1024
MAX_LISTED_TOKENS = 8192
"""In a field of a rule that lists tokens: a service keeps rules for every handle, as they were
parsed."""


class Acceptance(Enum):
    """How the target decides on a proposal: see `slipstream.sampling.coupled` and
    `slipstream.sampling.ratio`."""

    COUPLED = "coupled"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """A model's own sampling parameters, from its generation config. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    banned_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LengthDefaults:
    """A model's own bounds of a text's length in tokens, from its generation config. 0 where it
    says none."""

    min_token_count: int = 0
    """End tokens are held back until a turn has generated so many."""
    min_length: int = 0
    """The same, the prompt counted too."""
    max_token_count: int = 0
    max_length: int = 0
    """Most tokens, the prompt counted too; ``max_token_count`` wins over it."""


class Listed(NamedTuple):
    """The tokens that a rule lists, int64, its ``ends`` rising; and ``biases``, float32, of the
    ``biased`` ones."""

    ends: NDArray[np.int64]
    allowed: NDArray[np.int64]
    banned: NDArray[np.int64]
    biased: NDArray[np.int64]
    biases: NDArray[np.float32]


@dataclass(frozen=True)
class SamplingRule:
    """The rule by which the target chooses the tokens of one turn, with nothing left open.

    ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1, ``min_p`` 0, ``typical_p`` 1,
    ``repetition_penalty`` 1 and the other penalties at 0 are off, and so is an empty
    ``allowed_token_ids``. ``end_token_ids`` are not chosen at absolute positions before
    ``first_end_position``. Presence and frequency are counted, and the structure begins, at
    absolute position ``first_generated_position``.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    end_token_ids: tuple[int, ...] = ()
    first_end_position: int = 0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    first_generated_position: int = 0
    structure: Structure | None = None
    acceptance: Acceptance = Acceptance.COUPLED
    proposal_top_k: int = DEFAULT_PROPOSAL_TOP_K

    @property
    def draws_ratios(self) -> bool:
        """Whether proposals carry their distributions: greedy choices are the same under either
        acceptance."""
        return self.acceptance is Acceptance.RATIO and self.temperature > 0

    @property
    def penalises(self) -> bool:
        """Whether it looks at what has occurred."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def changes_logits(self) -> bool:
        """Whether it changes every row's logits before they are sampled from."""
        return self.penalises or bool(self.logit_bias or self.banned_token_ids or self.allowed_token_ids)

    @cached_property
    def ends(self) -> frozenset[int]:
        """``end_token_ids``, to look tokens up in: there may be thousands."""
        return frozenset(self.end_token_ids)

    @cached_property
    def listed(self) -> Listed:
        """Its lists, for whoever changes logits by them: rows of many rounds are chosen by one
        rule, and to make an array of 8,192 tokens takes longer than what it is for."""
        return Listed(
            np.array(sorted(self.end_token_ids), dtype=np.int64),
            np.array(self.allowed_token_ids, dtype=np.int64),
            np.array(self.banned_token_ids, dtype=np.int64),
            np.array([token for token, _ in self.logit_bias], dtype=np.int64),
            np.array([bias for _, bias in self.logit_bias], dtype=np.float32),
        )

    @property
    def token_ids(self) -> tuple[tuple[str, Sequence[int]], ...]:
        """Every field that names tokens."""
        return (
            ("end_token_ids", self.end_token_ids),
            ("logit_bias", [token for token, _ in self.logit_bias]),
            ("allowed_token_ids", self.allowed_token_ids),
            ("banned_token_ids", self.banned_token_ids),
        )


def _at_least(value: float, bound: float) -> bool:
    """Whether ``value`` is a ``bound`` or more, or as much once it has travelled: the wire has
    float32."""
    nearest: float = struct.unpack("f", struct.pack("f", bound))[0]
    return value >= min(bound, nearest)


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "temperature",
        lambda value: value == 0 or (_at_least(value, MIN_TEMPERATURE) and value <= MAX_TEMPERATURE),
        f"must be 0 (greedy) or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}",
    ),
    ("top_k", lambda value: value >= 0, "must be 0 (off) or more"),
    ("top_p", lambda value: 0 < value <= 1, "must be above 0 and at most 1"),
    ("min_p", lambda value: 0 <= value <= 1, "must be from 0 to 1"),
    ("typical_p", lambda value: 0 < value <= 1, "must be above 0 and at most 1"),
    (
        "repetition_penalty",
        lambda value: _at_least(value, MIN_REPETITION_PENALTY) and value <= MAX_REPETITION_PENALTY,
        f"must be from {MIN_REPETITION_PENALTY:g} to {MAX_REPETITION_PENALTY:g}",
    ),
    ("presence_penalty", lambda value: -MAX_PENALTY <= value <= MAX_PENALTY, "must be from -2 to 2"),
    ("frequency_penalty", lambda value: -MAX_PENALTY <= value <= MAX_PENALTY, "must be from -2 to 2"),
    ("seed", lambda value: 0 <= value <= MAX_SEED, "must be from 0 to 2^63 - 1"),
    ("proposal_top_k", lambda value: 1 <= value <= MAX_PROPOSAL_TOP_K, f"must be from 1 to {MAX_PROPOSAL_TOP_K}"),
)


def sampling_violations(rule: SamplingRule) -> list[FieldViolation]:
    """What is wrong with a rule; empty if nothing is. NaN is never right."""
    violations = [
        FieldViolation(name, f"{requirement}, but is {getattr(rule, name)}")
        for name, is_right, requirement in _CHECKS
        if not is_right(getattr(rule, name))
    ]
    violations += [
        FieldViolation(f"logit_bias[{token}]", f"must be from -100 to 100, but is {bias}")
        for token, bias in rule.logit_bias
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS
    ]
    return violations


def token_id_violations(rule: SamplingRule, vocabulary_size: int) -> list[FieldViolation]:
    """Fields of a rule that name tokens which the vocabulary does not have."""
    return [
        FieldViolation(name, f"must be token ids from 0 to {vocabulary_size - 1}")
        for name, tokens in rule.token_ids
        if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary_size)
    ]
