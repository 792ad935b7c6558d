"""Seconds of a step by its rows, from the measured profile and from recent steps. Pure.

A profile says how a step's time grows with its rows on an idle machine. Recent steps say how much
slower or faster this machine is now: a median of their ratios to the profile for each power of two
of rows. So a burst of other work, which slows a minority of steps, changes nothing. What a size
showed is forgotten after many steps of other sizes: a size that looked too dear would never be
tried again.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from statistics import median

RECENT_STEPS = 15
"""Steps of one size whose median counts. More: longer bursts change nothing, but the curve follows
a change later."""

_LEAST_STEPS = 3
"""Steps of one size before their median counts."""

_KEPT_STEPS = 256
"""Steps of other sizes after which a size's ratios are forgotten. More: a size that is dear is
tried less often, but one that was slow by chance stays unused for longer."""

_LEAST_CHANGE = 0.01
"""Share by which a median must change before the curve does."""


class StepTimes:
    """One curve of step times."""

    def __init__(self, profile: Sequence[tuple[int, float]], row_multiple: int = 1) -> None:
        """``profile``: (row count, seconds) of steps that ran alone on the machine, counts rising,
        at least one. A step costs as much as its rows rounded up to ``row_multiple``."""
        self._counts = [count for count, _ in profile]
        self._times: list[float] = []
        for _, seconds in profile:
            self._times.append(max(seconds, self._times[-1] if self._times else 0.0))
        self._row_multiple = row_multiple
        self._ratios: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._step_count = 0
        self._last_steps: dict[int, int] = {}
        """The number of the last step of each size."""
        self._table: list[float] = []
        """Seconds by stairs, as far as a caller has asked."""

    def record(self, row_count: int, seconds: float) -> None:
        """Record a step without prompts, from its start to the end of its choices."""
        padded = self._padded(row_count)
        size = padded.bit_length()
        self._forget_before_step(size)
        ratios = self._ratios.setdefault(size, deque(maxlen=RECENT_STEPS))
        ratios.append(seconds / self._profiled(padded))
        if len(ratios) < _LEAST_STEPS:
            return
        before, middle = self._medians.get(size, 0.0), median(ratios)
        if abs(middle - before) > _LEAST_CHANGE * before:
            self._medians[size] = middle
            self._table.clear()

    def seconds(self, row_count: int) -> float:
        """Return the seconds of a step of ``row_count`` rows, of all sequences. More rows never
        take less."""
        stair = self._padded(row_count) // self._row_multiple
        table = self._table
        while len(table) < stair:
            rows = (len(table) + 1) * self._row_multiple
            seconds = self._profiled(rows) * self._ratio(rows)
            table.append(max(seconds, table[-1]) if table else seconds)
        return table[stair - 1]

    def _forget_before_step(self, size: int) -> None:
        self._step_count += 1
        self._last_steps.pop(size, None)
        self._last_steps[size] = self._step_count  # the size that was used last is the last
        oldest = next(iter(self._last_steps))
        if self._step_count - self._last_steps[oldest] > _KEPT_STEPS:
            del self._last_steps[oldest], self._ratios[oldest]
            self._medians.pop(oldest, None)
            self._table.clear()

    def _padded(self, row_count: int) -> int:
        return max(1, -(-row_count // self._row_multiple)) * self._row_multiple

    def _ratio(self, row_count: int) -> float:
        """Return how much slower than the profile steps of this size are, between the sizes which
        were measured. A jump from size to size would look like a stair."""
        if not self._medians:
            return 1.0
        sizes = sorted(self._medians)
        place = math.log2(row_count) + 0.5  # the middle of the rows whose bit_length is the same
        index = bisect_left(sizes, place)
        if index in (0, len(sizes)):
            return self._medians[sizes[min(index, len(sizes) - 1)]]
        low, high = sizes[index - 1], sizes[index]
        share = (place - low) / (high - low)
        return self._medians[low] + share * (self._medians[high] - self._medians[low])

    def _profiled(self, row_count: int) -> float:
        counts, times = self._counts, self._times
        if len(counts) == 1 or row_count <= counts[0]:
            return times[0]
        index = min(bisect_left(counts, row_count), len(counts) - 1)  # beyond the last: its slope goes on
        low, high = counts[index - 1], counts[index]
        return times[index - 1] + (row_count - low) / (high - low) * (times[index] - times[index - 1])
