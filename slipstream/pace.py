"""The tokens a second that a run makes now. Pure."""

from __future__ import annotations

STEPS_OF_PACE = 16
"""Steps, or parts, after which one counts a third as much. More: the rate is steadier, but it
follows a change later."""


class Pace:
    """The rate of one run, over its last steps or parts."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    @property
    def tokens_per_second(self) -> float:
        """The rate; 0 before the first step."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def record(self, token_count: int, seconds: float) -> None:
        """Record tokens that came so many seconds after the ones before."""
        decay = 1 - 1 / STEPS_OF_PACE
        self._tokens = self._tokens * decay + token_count
        self._seconds = self._seconds * decay + seconds
