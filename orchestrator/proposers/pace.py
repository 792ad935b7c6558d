"""The tokens a second that a session makes now. Pure."""

from __future__ import annotations

_PARTS = 16
"""Parts after which a part counts a third as much. More: the rate is steadier, but follows a change
later."""


class Pace:
    """The rate of one session, over its last parts."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    @property
    def tokens_per_second(self) -> float:
        """The rate; 0 before the first part."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def record(self, token_count: int, seconds: float) -> None:
        """Record a part that came so many seconds after the part before."""
        decay = 1 - 1 / _PARTS
        self._tokens = self._tokens * decay + token_count
        self._seconds = self._seconds * decay + seconds
