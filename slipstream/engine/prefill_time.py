"""What prompts take of the time of everything that computes beside them. Pure.

A prompt in a step makes it longer for all items in it, and later for those that wait for it. That
is not the fault of how a round was run, so it is told apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROUND_TAIL = 8
"""Committed tokens that a round may have to prefill; a prompt has more."""


class PrefillTime:
    """Adds up by how much prompts made steps longer, in seconds."""

    def __init__(self, step_times: Sequence[tuple[int, float]] = ()) -> None:
        """``step_times``: (token count, seconds) of forwards that had the machine to themselves,
        counts rising."""
        self._counts = np.array([count for count, _ in step_times], dtype=float)
        self._times = np.maximum.accumulate([time for _, time in step_times])
        self._total = 0.0
        self._last = self._last_duration = self._last_end = 0.0

    @property
    def total(self) -> float:
        """Of all steps so far."""
        return self._total

    def at_arrival(self, when: float) -> float:
        """The sum for an item that came at a time: if the last step ran then, less what of that it
        has waited for."""
        waited = max(0.0, self._last_end - when)
        share = min(1.0, waited / self._last_duration) if self._last_duration else 0.0
        return self._total - share * self._last

    def record_step_time(self, end: float, duration: float, token_count: int, prompt_count: int = 0) -> None:
        """A step of so many tokens, ``prompt_count`` of them of prompts, was over at ``end``.

        What else makes it slow, like a draft at work on the same processors, does count as the
        round's.
        """
        longer = self.seconds_of(token_count) - self.seconds_of(token_count - prompt_count) if prompt_count else 0.0
        self._last, self._last_duration, self._last_end = min(duration, longer), duration, end
        self._total += self._last

    @property
    def is_profiled(self) -> bool:
        """Whether any forward was measured."""
        return bool(len(self._counts))

    def seconds_of(self, count: int) -> float:
        """Of a forward of so many tokens; 0 where none was measured."""
        counts, times = self._counts, self._times
        if not count or not len(counts):
            return 0.0
        beyond = max(0.0, count - counts[-1])
        slope = (times[-1] - times[-2]) / (counts[-1] - counts[-2]) if len(counts) > 1 else times[-1] / counts[-1]
        return float(np.interp(count, counts, times) + slope * beyond)
