"""The change of acceptance within a week, and the hour of it.

::

    hours:  before .. before | after .. after recent
                             ^ the change: the hour that divides best

A change counts if the two sides differ by more than a number of standard errors and by more than
what matters, and if the most recent tokens still show it. The hours after it may hold another one,
as after a new draft: then what counts as now is what came after that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    """Tokens since the last change; without one those of the most recent hours that are enough."""
    error: float = math.inf
    """Standard error of the difference."""
    since: int | None = None
    """The first hour of the change; None without one."""
    again: Comparison | None = None
    """The comparison of the hours since the change, if acceptance has changed once more."""

    @property
    def now_since(self) -> int | None:
        """The first hour of ``now`` after a change; None without one."""
        return self.since if self.again is None else self.again.now_since

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
        stays = sign * (recent.value - best.before.value)
        found = best.compared(state, best.after)
        if stays > demand.least_difference and _counts(found, sign, demand):
            again = compare([each for each in hours if each.hour >= best.since], demand)
            if again.since is not None:
                found = replace(best.compared(state, again.now), again=again)
            if _counts(found, sign, demand):
                return found
    return replace(splits[-1].compared(State.STEADY, recent), since=None)


def _counts(found: Comparison, sign: int, demand: Demand) -> bool:
    """Return whether a change is large and sure enough."""
    return sign * found.difference > max(demand.least_difference, demand.deviations * found.error) < math.inf


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

    def compared(self, state: State, now: RatioSums) -> Comparison:
        factor = overdispersion(each.counts for each in self.before_hours)
        error = math.sqrt(variance(self.before, factor) + variance(now, factor))
        return Comparison(state, self.before, now, error, self.since)


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
