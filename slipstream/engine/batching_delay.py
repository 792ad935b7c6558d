"""The batching delay: how long a step waits for sequences that are about to come back. Pure.

The answers of a step leave together, but the next items arrive one by one, spread over about a
millisecond. A step that starts with the first item leaves the others a whole step behind. Two
groups then alternate, and each pays for its own steps. Each step has a fixed cost that no token
adds to, mostly the reading of the weights. A wait shorter than this cost is won back, because it
saves a step.
"""

from __future__ import annotations

import math

_MAX_SHARE = 0.5
"""Longest delay, as a share of a step's fixed time."""

_SLACK = 1.5
"""Wait for a sequence, as a multiple of its usual absence."""

_EMA_WEIGHT = 0.25
"""Weight of the latest absence in the moving average."""

_FIXED_DRIFT = 1.002
"""Growth of the shortest known step time per step, so that it follows a machine that slows down."""

_HABIT = 4
"""An absence longer than this multiple of the longest delay is a user's pause, not a habit."""


class BatchingDelay:
    """Knows which sequences were just answered and how long each usually stays away. Times are in
    seconds."""

    def __init__(self) -> None:
        self._left: dict[str, float] = {}
        self._absences: dict[str, float] = {}
        self._fixed = math.inf
        self._ready_since: float | None = None

    @property
    def longest(self) -> float:
        """The longest delay that a saved step can win back."""
        return 0.0 if math.isinf(self._fixed) else _MAX_SHARE * self._fixed

    def record_answer(self, handle: str, now: float) -> None:
        """Record that a sequence's answer leaves."""
        self._left[handle] = now

    def record_arrival(self, handle: str, now: float) -> None:
        """Record that a sequence's next item has arrived."""
        left = self._left.pop(handle, None)
        if left is None or now - left > _HABIT * self.longest:
            self._absences.pop(handle, None)
            return
        known = self._absences.get(handle, now - left)
        self._absences[handle] = known + _EMA_WEIGHT * (now - left - known)

    def forget_sequence(self, handle: str) -> None:
        """Forget a sequence that was closed."""
        self._left.pop(handle, None)
        self._absences.pop(handle, None)

    def record_step_time(self, seconds: float) -> None:
        """Record that a step has run, and how long it took."""
        self._ready_since = None
        self._fixed = min(seconds, self._fixed * _FIXED_DRIFT)

    def seconds_to_wait(self, now: float) -> float:
        """Return how much longer a step that could begin should wait; 0 if it should begin."""
        if self._ready_since is None:
            self._ready_since = now
        due = now
        for handle, left in list(self._left.items()):
            absence = self._absences.get(handle, math.inf)
            if absence > self.longest or now > left + _SLACK * absence:
                if now - left > _HABIT * self.longest:
                    self.forget_sequence(handle)
                continue
            due = max(due, left + _SLACK * absence)
        return max(0.0, min(due, self._ready_since + self.longest) - now)
