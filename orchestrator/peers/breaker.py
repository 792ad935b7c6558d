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
    """About as long: those who began to wait together do not come back together."""
    return seconds * random.uniform(_LEAST, _MOST)


class Breaker:
    """A circuit breaker: after a failure the peer is left alone.

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
        """True if one caller may ask, to see if the peer is back. That caller then calls
        `probed`."""
        return not self.is_closed and self._clock() >= self._next_probe

    def probed(self) -> None:
        """The peer has been asked, to see if it is back. Unless it answers the next may ask after
        the next pause."""
        self._next_probe = self._clock() + self._jitter(self._pause)
        self._pause = min(self._pause * 2, self._longest_pause)

    def answered(self) -> None:
        """The peer is there. Whether it is well those will see who ask it now: if not, the next
        pause is as long as the next would have been."""
        self.is_closed = True

    def succeeded(self) -> None:
        """The peer did in time what it was asked."""
        self.is_closed = True
        self._pause = self._first_pause

    def failed(self) -> None:
        """The peer failed or was late. Many sessions may find out at once; only the first
        counts."""
        if self.is_closed or self.is_half_open:
            self.is_closed = False
            self.probed()
