"""The change of acceptance within a week, and the hour of it.

::

    hours:  before .. before | after .. after recent
                             ^ the change: the hour that divides best

A change counts if the two sides differ by more than a number of standard errors and by more than
what matters, and if the most recent tokens still show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from slipstream.drift.variance import overdispersion, variance
from slipstream.ratio_sums import NOTHING, RatioSums, total

WEEK_HOURS: Final = 168


class Hour(NamedTuple):
    """Accepted over drafted tokens of one hour, which is given in hours since the epoch."""

    hour: int
    counts: RatioSums


class State(Enum):
    """The outcome of a comparison."""

    WORSE = "worse"
    BETTER = "better"
    STEADY = "steady"
    FEW = "too few"
    """There are too few tokens now, or in the week before."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Bounds from which on a change counts."""

    least_tokens: int = 1000
    """Draft tokens on either side. Less: a change is found earlier, if it is large."""
    least_difference: float = 0.05
    """Difference in acceptance that matters. Less: small drifts are told too."""
    least_turns: int = 8
    deviations: float = 4.0
    """Standard errors. The best of up to 192 hours divides the two sides, so chance has as many
    tries: see tests/unit/test_drift.py for how often it is wrong."""

    def is_enough(self, counts: RatioSums) -> bool:
        """Return whether there are enough tokens to judge."""
        return counts.denominator >= self.least_tokens and counts.count >= self.least_turns


@dataclass(frozen=True, slots=True)
class Comparison:
    """Acceptance now and in the week before."""

    state: State
    before: RatioSums
    now: RatioSums
    """Tokens since the change; without one those of the most recent hours that are enough."""
    error: float = math.inf
    """Standard error of the difference."""
    since: int | None = None
    """The first hour of the change; None without one."""

    @property
    def difference(self) -> float:
        """The acceptance now less that of before."""
        return self.now.value - self.before.value


def compare(hours: Sequence[Hour], demand: Demand) -> Comparison:
    """Compare the last of some hours, which are in order, with the week before them."""
    start = _recent_start(hours, demand)
    recent = total(each.counts for each in hours[start:])
    splits = list(_splits(hours, start, demand)) if demand.is_enough(recent) else []
    if not splits:
        return Comparison(State.FEW, total(each.counts for each in hours[:start]), recent)
    for state, sign in ((State.WORSE, -1), (State.BETTER, 1)):
        on_this_side = [split for split in splits if sign * split.difference > 0]
        if not on_this_side:
            continue
        best = max(on_this_side, key=lambda split: split.separation)
        error = _error(best.before_hours, best.before, best.after)
        stays = sign * (recent.value - best.before.value)
        if sign * best.difference > max(demand.least_difference, demand.deviations * error) < math.inf and (
            stays > demand.least_difference
        ):
            return Comparison(state, best.before, best.after, error, best.since)
    last = splits[-1]
    return Comparison(State.STEADY, last.before, recent, _error(last.before_hours, last.before, recent))


class _Split(NamedTuple):
    since: int
    before: RatioSums
    after: RatioSums
    before_hours: Sequence[Hour]
    separation: float
    """Sum of squares between all hours before and all hours after: comparable between splits."""

    @property
    def difference(self) -> float:
        return self.after.value - self.before.value


def _recent_start(hours: Sequence[Hour], demand: Demand) -> int:
    """Return the index of the hour with which the most recent tokens begin that are enough."""
    counts = NOTHING
    for index in range(len(hours) - 1, -1, -1):
        counts = counts.plus(hours[index].counts)
        if demand.is_enough(counts):
            return index
    return 0


def _splits(hours: Sequence[Hour], most: int, demand: Demand) -> Iterator[_Split]:
    """Yield each way to divide the hours so that the second side begins at index ``most`` or
    before, and both sides have enough. The first side is a week at most."""
    after = total(each.counts for each in hours)
    first, before, earlier = 0, NOTHING, NOTHING
    for index in range(1, most + 1):
        before, after = before.plus(hours[index - 1].counts), after.plus(hours[index - 1].counts, -1)
        while hours[first].hour < hours[index].hour - WEEK_HOURS:
            before, earlier = before.plus(hours[first].counts, -1), earlier.plus(hours[first].counts)
            first += 1
        if demand.is_enough(before):
            yield _Split(hours[index].hour, before, after, hours[first:index], _separation(before.plus(earlier), after))


def _separation(before: RatioSums, after: RatioSums) -> float:
    weight = before.denominator * after.denominator / (before.denominator + after.denominator)
    return weight * (after.value - before.value) ** 2


def _error(before_hours: Sequence[Hour], before: RatioSums, after: RatioSums) -> float:
    factor = overdispersion(each.counts for each in before_hours)
    return math.sqrt(variance(before, factor) + variance(after, factor))
