"""What a plan for a round says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Overlap(Enum):
    """What the draft does while the target verifies."""

    __hash__ = object.__hash__  # Enum's own is Python, and rounds look up tens of means by it

    NONE = "none"
    """Nothing: a round asks for a proposal and waits for it."""
    ENUMERATE = "enumerate"
    """It prepares for what verification may answer; for an answer it did not prepare for, a round
    waits."""
    RUN_AHEAD = "run_ahead"
    """It is rounds ahead, and no round waits for it."""


class Why(Enum):
    """Why a plan is as it is."""

    OFF = "off"
    """The request wants no draft, or there is no room for more than one token."""
    NO_DRAFT = "no_draft"
    """The draft is away, or left alone after a failure."""
    FIXED = "fixed"
    """The request says how many."""
    GUESS = "guess"
    """Nothing is known of the draft's time yet."""
    FORECAST = "forecast"
    """Most tokens a second, as forecast."""
    TRY = "try"
    """Another way than the best, to see what it brings by now."""
    NOT_WORTH_IT = "not_worth_it"
    """Plain decoding is forecast to be as fast."""


def load_of(session_count: int) -> int:
    """One number for numbers of sessions that are about alike: 1; 2 to 4; 5 to 16; 17 to 64; and so
    on."""
    return ((session_count - 1).bit_length() + 1) // 2


class Regime(NamedTuple):
    """How a pair's rounds are run just now: which way, None being plain decoding, and with how many
    sessions, by `load_of`. What is measured in one says little about another: where all draft
    before they verify, the verifier's queue is another than where all are always in it."""

    way: Overlap | None
    load: int = 0

    @property
    def overlaps(self) -> bool:
        """Whether the draft works while the target verifies."""
        return self.way in (Overlap.ENUMERATE, Overlap.RUN_AHEAD)


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """``draft_length`` 0 is plain decoding: the draft is not asked. ``rate`` is the forecast in
    tokens a second, if there is one."""

    draft_length: int
    overlap: Overlap = Overlap.NONE
    branch_count: int = 0
    rate: float | None = None
    recovery_length: int = 0
    """Draft tokens to wait for where nothing that was prepared came true."""
    hit_rate: float | None = None
    miss_rate: float | None = None
    """Where the draft enumerates: ``rate`` once it has turned out whether what was prepared came
    true."""
    first_rate: float | None = None
    """Likewise that of a turn's first round, if it waits for a proposal: nothing can have been
    prepared."""
    switches_off: bool = False
    """Whether this is the first plain round because speculation would cost."""
    switches_on: bool = False
    """Whether this is the first round that drafts again after that, and not only to see."""
    why: Why = Why.OFF

    @property
    def way(self) -> Overlap | None:
        """None is plain decoding."""
        return self.overlap if self.draft_length else None

    def rate_of(self, hit: bool | None) -> float | None:
        """The forecast of a round of which is known whether what was prepared came true, or None if
        it is unknown."""
        return self.rate if hit is None else self.hit_rate if hit else self.miss_rate


PLAIN = RoundPlan(0)
