"""When a step waits a moment for sequences that are about to come back. Pure.

A step's answers leave together, and the next items come one by one, the first of them a millisecond
before the last. A step that starts with the first leaves the others a whole step behind: then two
groups take turns, and each pays for steps of its own. A model's step has a part that no token adds
to, reading the weights above all: a wait shorter than that part is won back by the step that is
saved.
"""

from __future__ import annotations

import math

_WORTH = 0.5
"""Of a step's fixed part that is waited at most."""

_SLACK = 1.5
"""Times its usual absence that a sequence is waited for."""

_WEIGHT = 0.25
"""Of the latest absence."""

_FIXED_DRIFT = 1.002
"""By which the shortest step known grows with each step, so that it follows a machine that has
become slower."""


class Gathering:
    """Knows whose answer has just left, and how long they usually stay away. Times in seconds."""

    def __init__(self) -> None:
        self._left: dict[str, float] = {}
        self._absences: dict[str, float] = {}
        self._fixed = math.inf
        self._ready_since: float | None = None

    @property
    def longest(self) -> float:
        """The longest wait that is worth it."""
        return 0.0 if math.isinf(self._fixed) else _WORTH * self._fixed

    def answered(self, handle: str, now: float) -> None:
        """A sequence's answer leaves."""
        self._left[handle] = now

    def arrived(self, handle: str, now: float) -> None:
        """A sequence's next item is there."""
        left = self._left.pop(handle, None)
        if left is None or now - left > 4 * self.longest:  # a user's pause is no habit
            self._absences.pop(handle, None)
            return
        known = self._absences.get(handle, now - left)
        self._absences[handle] = known + _WEIGHT * (now - left - known)

    def forget(self, handle: str) -> None:
        """A sequence was closed."""
        self._left.pop(handle, None)
        self._absences.pop(handle, None)

    def stepped(self, seconds: float) -> None:
        """A step began and took that long."""
        self._ready_since = None
        self._fixed = min(seconds, self._fixed * _FIXED_DRIFT)

    def wait(self, now: float) -> float:
        """How much longer a step that could begin should wait; 0 if not at all."""
        if self._ready_since is None:
            self._ready_since = now
        due = now
        for handle, left in list(self._left.items()):
            absence = self._absences.get(handle, math.inf)
            if absence > self.longest or now > left + _SLACK * absence:
                if now - left > 4 * self.longest:
                    self.forget(handle)
                continue
            due = max(due, left + _SLACK * absence)
        return max(0.0, min(due, self._ready_since + self.longest) - now)
