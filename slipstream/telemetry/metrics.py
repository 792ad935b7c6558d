"""What metrics are made of: plain numbers that are cheap to add to, and readings of them when
somebody asks.

OpenTelemetry's own instruments take 5 to 7 us an observation, which for the fifteen of a round is a
quarter of what the orchestrator computes in it; these take 0.1 to 0.4.
`slipstream.telemetry.exposition` gives them to Prometheus and OTLP. Pure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from slipstream.telemetry.instruments import Instrument

Labels = tuple[str, ...]

_FOLDED_FROM = 2_000


class Distribution:
    """A histogram's counts and sum. One thread observes; any may read, and finds all that had been
    observed before."""

    __slots__ = ("_counts", "_fresh", "_lock", "_sum", "bounds", "observe", "observe_all")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds`` are the buckets' upper bounds, ascending; one more bucket takes what is
        above."""
        self.bounds = bounds
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0
        self._fresh: list[float] = []
        self._lock = threading.Lock()
        self.observe: Callable[[float], None] = self._fresh.append
        """One value. An append is all that it costs: they are counted later, many at a time."""
        self.observe_all: Callable[[list[float]], None] = self._fresh.extend
        """Several values."""

    def fold(self, least: int = _FOLDED_FROM) -> None:
        """Count what has been observed, if that are as many. Who observes calls it now and then:
        there are never many more."""
        if len(self._fresh) < least:
            return
        with self._lock:
            count = len(self._fresh)
            values = np.array(self._fresh[:count])
            del self._fresh[:count]  # what was observed meanwhile stays
            self._counts += np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.bounds) + 1)
            self._sum += float(values.sum())

    @property
    def counts(self) -> list[int]:
        """Observations of each bucket."""
        self.fold(1)
        return [int(count) for count in self._counts]

    @property
    def sum(self) -> float:
        """Of all values."""
        self.fold(1)
        return self._sum

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)


class Reading(NamedTuple):
    """What an instrument says just now: a value for each set of labels, which are in the
    instrument's order."""

    instrument: Instrument
    values: Mapping[Labels, float | Distribution]


Source = Callable[[], Iterable[Reading]]
"""Asked whenever metrics are looked at, from any thread."""


def reading(instrument: Instrument, value: float | Distribution | Mapping[Any, Any]) -> Reading:
    """A reading of one value without labels, or of a number or distribution for each tuple of
    labels."""
    return Reading(instrument, dict(value) if isinstance(value, Mapping) else {(): value})
