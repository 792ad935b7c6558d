"""Sampling rules of turns. The orchestrator validates and resolves them, so this module imports no
large library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FieldViolation
from slipstream.sampling.structure import Structure
from slipstream.sampling_fields import SAMPLING_FIELDS, CompleteSamplingFields, values_of

SAMPLING_VERSION = 3
"""Version of how tokens are chosen: noise, filters and their order. A seed's text may change only
with it."""

MAX_LOGIT_BIAS = 100.0
DEFAULT_PROPOSAL_TOP_K = 64
MAX_PROPOSAL_TOP_K = 1024
MAX_LISTED_TOKENS = 8192
"""In a field of a rule that lists tokens: a service keeps rules for every handle, as they were
parsed."""


class Acceptance(Enum):
    """The way in which the target decides on a proposal: see `slipstream.sampling.coupled` and
    `slipstream.sampling.ratio`."""

    COUPLED = "coupled"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class SamplingDefaults(CompleteSamplingFields):
    """A model's own sampling parameters, from its generation config. Temperature 0 is greedy."""

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


NUMBERS: Final = np.dtype(
    [(name, np.uint64 if isinstance(each.off, int) else np.float64) for name, each in SAMPLING_FIELDS.items()]
)
"""A rule's sampling fields as compiled code reads them: ``numbers[row].temperature``. Whole numbers
are 0 or more."""


class Listed(NamedTuple):
    """The tokens that a rule lists, int64, its ``ends`` rising; and ``biases``, float32, of the
    ``biased`` ones."""

    ends: NDArray[np.int64]
    allowed: NDArray[np.int64]
    banned: NDArray[np.int64]
    biased: NDArray[np.int64]
    biases: NDArray[np.float32]


@dataclass(frozen=True)
class SamplingRule(CompleteSamplingFields):
    """The rule by which the target chooses the tokens of one turn, with nothing left open.

    ``temperature`` 0 is greedy. Each sampling field is off at the value that `SAMPLING_FIELDS`
    names, and so is an empty ``allowed_token_ids``. ``end_token_ids`` are not chosen at absolute
    positions before ``first_end_position``. Presence and frequency are counted, and the structure
    begins, at absolute position ``first_generated_position``."""

    end_token_ids: tuple[int, ...] = ()
    first_end_position: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    first_generated_position: int = 0
    structure: Structure | None = None
    acceptance: Acceptance = Acceptance.COUPLED
    proposal_top_k: int = DEFAULT_PROPOSAL_TOP_K

    @property
    def draws_ratios(self) -> bool:
        """True if proposals carry their distributions. Greedy choices are the same under either
        acceptance."""
        return self.acceptance is Acceptance.RATIO and self.temperature > 0

    @property
    def penalises(self) -> bool:
        """True if the rule depends on the tokens before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def changes_logits(self) -> bool:
        """True if the rule changes every row's logits before sampling."""
        return self.penalises or bool(self.logit_bias or self.banned_token_ids or self.allowed_token_ids)

    @cached_property
    def ends(self) -> frozenset[int]:
        """``end_token_ids``, to look tokens up in: there may be thousands."""
        return frozenset(self.end_token_ids)

    @cached_property
    def listed(self) -> Listed:
        """The rule's lists as arrays. They are made once, for one rule chooses the rows of many
        rounds, and making an array of 8,192 tokens takes longer than using it."""
        return Listed(
            np.array(sorted(self.end_token_ids), dtype=np.int64),
            np.array(self.allowed_token_ids, dtype=np.int64),
            np.array(self.banned_token_ids, dtype=np.int64),
            np.array([token for token, _ in self.logit_bias], dtype=np.int64),
            np.array([bias for _, bias in self.logit_bias], dtype=np.float32),
        )

    @cached_property
    def numbers(self) -> bytes:
        """The bytes of its sampling fields as one `NUMBERS`."""
        return np.array(tuple(values_of(self).values()), dtype=NUMBERS).tobytes()

    @property
    def token_ids(self) -> tuple[tuple[str, Sequence[int]], ...]:
        """Every field that names tokens."""
        return (
            ("end_token_ids", self.end_token_ids),
            ("logit_bias", [token for token, _ in self.logit_bias]),
            ("allowed_token_ids", self.allowed_token_ids),
            ("banned_token_ids", self.banned_token_ids),
        )


def numbers_of(rules: Sequence[SamplingRule]) -> NDArray[np.void]:
    """Return the sampling fields of several rules, one `NUMBERS` each."""
    return np.frombuffer(bytearray(b"".join([rule.numbers for rule in rules])), dtype=NUMBERS)


def sampling_violations(rule: SamplingRule) -> list[FieldViolation]:
    """Return the faults of a rule; empty if there are none. NaN is always a fault."""
    violations = [
        FieldViolation(name, f"{field.requirement}, but is {getattr(rule, name)}")
        for name, field in SAMPLING_FIELDS.items()
        if not field.is_right(getattr(rule, name))
    ]
    if not 1 <= rule.proposal_top_k <= MAX_PROPOSAL_TOP_K:
        what = f"must be from 1 to {MAX_PROPOSAL_TOP_K}, but is {rule.proposal_top_k}"
        violations.append(FieldViolation("proposal_top_k", what))
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
