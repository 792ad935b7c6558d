"""Findings for each task and temperature, with the draft and the target behind them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

from slipstream.drift.change import WEEK_HOURS, Comparison, Demand, Hour, State, compare
from slipstream.ratio_sums import NOTHING, RatioSums
from slipstream.v1 import acceptance_pb2

NOT_DRAFTS: Final = frozenset({"ngram", "prediction"})
"""Sources whose acceptance says nothing about a draft."""


class Cause(Enum):
    """The part that changed when acceptance did."""

    TARGET = "target"
    DRAFT = "draft"
    REQUESTS = "requests"
    """Neither the target nor the draft: the requests, or the draft does not work as it did."""


class Pair(NamedTuple):
    """Fingerprints of a target and a draft."""

    target: str
    draft: str


NO_PAIR: Final = Pair("", "")


class Fall(NamedTuple):
    """A change for the worse."""

    pair_before: Pair
    """The pair that made most of the tokens before."""
    pair: Pair
    """The pair that made most of the tokens after, up to the next change."""

    @property
    def cause(self) -> Cause:
        """The cause by what changed at the same time."""
        if self.pair.target != self.pair_before.target:
            return Cause.TARGET
        return Cause.DRAFT if self.pair.draft != self.pair_before.draft else Cause.REQUESTS


@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of one task at one class of temperatures."""

    task: str
    temperature_class: int
    comparison: Comparison
    pair_before: Pair
    """The pair that made most of the tokens before the change."""
    pair: Pair
    """The pair that made most of the tokens now."""
    falls: Sequence[Fall] = ()
    """Changes for the worse, in order, if acceptance is worse now."""

    @property
    def cause(self) -> Cause | None:
        """The cause of the first fall; None without one."""
        return self.falls[0].cause if self.falls else None


def findings_of(hours: Iterable[acceptance_pb2.AcceptanceHour], demand: Demand) -> list[Finding]:
    """Return a finding for each task and class of temperatures: the worst first, then by name."""
    series: Mapping[tuple[str, int], dict[tuple[int, Pair], RatioSums]] = defaultdict(dict)
    for row in hours:
        if row.draft not in NOT_DRAFTS:
            moment = row.hour.seconds // 3600, Pair(row.target_fingerprint, row.draft)
            series[row.task, row.temperature_class][moment] = _counts_of(row)
    found = [_finding(task, temperature, counts, demand) for (task, temperature), counts in series.items()]
    return sorted(found, key=_rank)


def _counts_of(hour: acceptance_pb2.AcceptanceHour) -> RatioSums:
    return RatioSums(
        hour.accepted_token_count,
        hour.draft_token_count,
        hour.accepted_token_square_sum,
        hour.product_sum,
        hour.draft_token_square_sum,
        hour.turn_count,
    )


def _finding(task: str, temperature: int, by_pair: Mapping[tuple[int, Pair], RatioSums], demand: Demand) -> Finding:
    by_hour: dict[int, RatioSums] = {}
    for (hour, _), counts in by_pair.items():
        by_hour[hour] = by_hour.get(hour, NOTHING).plus(counts)
    hours = [Hour(hour, by_hour[hour]) for hour in sorted(by_hour)]
    comparison = compare(hours, demand)
    changes = [*_changes(comparison)]
    bounds = [*(since for since, _ in changes), hours[-1].hour + 1]
    pairs = [_pair_of(by_pair, range(bounds[0] - WEEK_HOURS, bounds[0]))]
    pairs += [_pair_of(by_pair, range(*each)) for each in pairwise(bounds)]
    falls = [Fall(*pair) for (_, state), pair in zip(changes, pairwise(pairs), strict=True) if state is State.WORSE]
    return Finding(task, temperature, comparison, pairs[0], pairs[-1], falls if comparison.state is State.WORSE else ())


def _changes(comparison: Comparison) -> Iterator[tuple[int, State]]:
    """Yield the hours of all changes that a comparison found, and their directions."""
    found: Comparison | None = comparison
    while found is not None and found.since is not None:
        yield found.since, found.state
        found = found.again


def _pair_of(by_pair: Mapping[tuple[int, Pair], RatioSums], hours: range) -> Pair:
    """Return the pair that made most of the tokens of some hours."""
    drafted: dict[Pair, float] = defaultdict(float)
    for (hour, pair), counts in by_pair.items():
        if hour in hours:
            drafted[pair] += counts.denominator
    return max(drafted, key=drafted.__getitem__, default=NO_PAIR)


_ORDER: Final = (State.WORSE, State.BETTER, State.STEADY, State.FEW)


def _rank(finding: Finding) -> tuple[int, float, str, int]:
    state = finding.comparison.state
    fall = finding.comparison.difference if state is State.WORSE else 0.0
    return _ORDER.index(state), fall, finding.task, finding.temperature_class


def worse(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of drift."""
    return [finding for finding in findings if finding.comparison.state is State.WORSE]
