"""Draft tokens of some turns, and how sure their acceptance is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple


class AcceptanceCounts(NamedTuple):
    """Draft tokens of turns. The sums of squares are over turns: they give a standard error that
    does not take the tokens of one turn for independent."""

    turns: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_squared: int = 0
    drafted_accepted: int = 0
    accepted_squared: int = 0

    @classmethod
    def of_turn(cls, drafted: int, accepted: int) -> AcceptanceCounts:
        """Return the counts of one turn."""
        return cls(1, drafted, accepted, drafted * drafted, drafted * accepted, accepted * accepted)

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:  # type: ignore[override]  # it is no sequence here
        return AcceptanceCounts(*(own + more for own, more in zip(self, other, strict=True)))

    def __sub__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        return AcceptanceCounts(*(own - less for own, less in zip(self, other, strict=True)))

    @property
    def acceptance(self) -> float:
        """Accepted draft tokens as a share of all; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def spread(self, acceptance: float) -> float:
        """Return the sum over turns of the squared difference between a turn's accepted tokens and
        what ``acceptance`` gives it."""
        both = self.accepted_squared - 2 * acceptance * self.drafted_accepted
        return max(0.0, both + acceptance**2 * self.drafted_squared)

    def variance(self, overdispersion: float = 1.0) -> float:
        """Return the variance of the acceptance: that of a ratio over turns, and no less than that
        of independent tokens. It is multiplied by the ``overdispersion`` between hours."""
        if self.turns < 2 or not self.drafted:
            return math.inf
        share = (self.accepted + 1) / (self.drafted + 2)
        of_turns = self.spread(self.acceptance) * self.turns / (self.turns - 1)
        return overdispersion * max(of_turns, self.drafted * share * (1 - share)) / self.drafted**2


NOTHING = AcceptanceCounts()


def total(counts: Iterable[AcceptanceCounts]) -> AcceptanceCounts:
    """Return all counts together."""
    return reduce(AcceptanceCounts.__add__, counts, NOTHING)


def overdispersion(hours: Iterable[AcceptanceCounts]) -> float:
    """Return how many times as much the acceptance of hours differs as that of their turns alone
    would make it; at least 1."""
    known = list(hours)
    acceptance = total(known).acceptance
    expected = sum(each.spread(acceptance) for each in known)
    found = sum((each.accepted - acceptance * each.drafted) ** 2 for each in known)
    return max(1.0, found / expected) if expected and len(known) > 2 else 1.0
