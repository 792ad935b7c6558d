"""The time that prompts add to the steps of the items beside them. Pure.

A prompt in a step makes the step longer for all items in it, and later for items that wait for it.
The way a round was run does not cause this, so it is reported separately.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class PrefillTime:
    """Sum of the seconds by which prompts made steps longer."""

    def __init__(self, step_times: Sequence[tuple[int, float]] = ()) -> None:
        """``step_times``: (token count, seconds) of forwards that ran alone on the machine, counts
        rising."""
        self._counts = np.array([count for count, _ in step_times], dtype=float)
        self._times = np.maximum.accumulate([time for _, time in step_times])
        self._total = 0.0
        self._last = self._last_duration = self._last_end = 0.0

    @property
    def total(self) -> float:
        """The sum over all steps so far."""
        return self._total

    def at_arrival(self, when: float) -> float:
        """Return the sum for an item that arrived at ``when``. If the last step was running then,
        the part that the item waited for is not yet in it."""
        waited = max(0.0, self._last_end - when)
        share = min(1.0, waited / self._last_duration) if self._last_duration else 0.0
        return self._total - share * self._last

    def record_step_time(self, end: float, duration: float, token_count: int, prompt_count: int = 0) -> None:
        """Record a step of ``token_count`` tokens, ``prompt_count`` of them from prompts, that
        ended at ``end``.

        Other causes of a slow step, like a draft that works on the same processors, count as the
        round's own.
        """
        longer = self.seconds_of(token_count) - self.seconds_of(token_count - prompt_count) if prompt_count else 0.0
        self._last, self._last_duration, self._last_end = min(duration, longer), duration, end
        self._total += self._last

    def seconds_of(self, count: int) -> float:
        """Return the seconds of a forward of ``count`` tokens; 0 if none was measured."""
        counts, times = self._counts, self._times
        if not count or not len(counts):
            return 0.0
        beyond = max(0.0, count - counts[-1])
        slope = (times[-1] - times[-2]) / (counts[-1] - counts[-2]) if len(counts) > 1 else times[-1] / counts[-1]
        return float(np.interp(count, counts, times) + slope * beyond)
