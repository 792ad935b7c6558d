"""What metrics are made of: plain numbers that are cheap to add to, and readings of them when somebody asks.

OpenTelemetry's own instruments take 5 to 7 us an observation, which for the fifteen of a round is a quarter of what the
orchestrator computes in it; these take 0.1 to 0.4. `slipstream.telemetry.exposition` gives them to Prometheus and OTLP.
Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from slipstream.telemetry.instruments import Instrument

Labels = tuple[str, ...]


class Distribution:
    """A histogram's counts and sum. Written by one thread; others may read at any time and find it at most an observation
    old."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds`` are the buckets' upper bounds, ascending; one more bucket takes what is above."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """``count`` times the same value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)


class Reading(NamedTuple):
    """What an instrument says just now: a value for each set of labels, which are in the instrument's order."""

    instrument: Instrument
    values: Mapping[Labels, float | Distribution]


Source = Callable[[], Iterable[Reading]]
"""Asked whenever metrics are looked at, from any thread."""


def reading(instrument: Instrument, value: float | Distribution | Mapping[Any, Any]) -> Reading:
    """A reading of one value without labels, or of a number or distribution for each tuple of labels."""
    return Reading(instrument, dict(value) if isinstance(value, Mapping) else {(): value})
