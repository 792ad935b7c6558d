"""When to leave a peer alone. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable


class Breaker:
    """A circuit breaker: after a failure it is open for a while, each time twice as long, and the peer is left alone."""

    def __init__(
        self,
        *,
        first_pause: float = 0.5,
        longest_pause: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Pauses in seconds."""
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._clock = clock
        self._pause = first_pause
        self._open_until = 0.0

    @property
    def allows(self) -> bool:
        """Whether the peer may be asked now."""
        return self._clock() >= self._open_until

    def succeeded(self) -> None:
        """The peer answered."""
        self._pause = self._first_pause

    def failed(self) -> None:
        """The peer failed or was late. Many sessions may find out at once; only the first counts."""
        if not self.allows:
            return
        self._open_until = self._clock() + self._pause
        self._pause = min(self._pause * 2, self._longest_pause)
