"""When to leave a peer alone, and when to see whether it is back. Pure.

::

    CLOSED --failed--> OPEN --pause is over--> HALF OPEN --probed--> OPEN, for twice as long
       ^_______________________answered, succeeded_______________________|
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

_LEAST, _MOST = 0.75, 1.25


def jittered(seconds: float) -> float:
    """Return about ``seconds``, so that callers who began to wait together do not come back
    together."""
    return seconds * random.uniform(_LEAST, _MOST)


class Breaker:
    """A circuit breaker: after a failure the peer gets no requests.

    After a pause, which doubles each time, one caller may probe it. All callers ask again once it
    has answered.
    """

    def __init__(
        self,
        *,
        first_pause: float = 0.5,
        longest_pause: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[float], float] = jittered,
    ) -> None:
        """Pauses in seconds."""
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._clock = clock
        self._jitter = jitter
        self._pause = first_pause
        self._next_probe = 0.0
        self.is_closed = True
        """True if the peer may be asked."""

    @property
    def is_half_open(self) -> bool:
        """True if one caller may probe the peer. That caller then calls `record_probe`."""
        return not self.is_closed and self._clock() >= self._next_probe

    def record_probe(self) -> None:
        """Record that a caller probes the peer. Unless it answers, the next probe may follow after
        the next pause."""
        self._next_probe = self._clock() + self._jitter(self._pause)
        self._pause = min(self._pause * 2, self._longest_pause)

    def record_answer(self) -> None:
        """Record that the peer answers. If it then fails, the next pause is as long as it would
        have been."""
        self.is_closed = True

    def record_success(self) -> None:
        """Record that the peer did in time what it was asked."""
        self.is_closed = True
        self._pause = self._first_pause

    def record_failure(self) -> None:
        """Record that the peer failed or was late. If many sessions report it at once, only the
        first counts."""
        if self.is_closed or self.is_half_open:
            self.is_closed = False
            self.record_probe()
