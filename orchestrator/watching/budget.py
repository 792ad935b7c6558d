"""How many spans a process may write a second: what tracing costs has a bound, however many rounds
there are. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable


class SpanBudget:
    """A bucket that fills at a steady rate, and lends no more than it holds."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``rate`` spans a second, at most ``most`` at once."""
        self._rate = rate
        self._most = most
        self._clock = clock
        self._level = most
        self._filled = clock()

    def take(self, count: int) -> bool:
        """True if there are as many; they are gone then."""
        self._fill()
        if self._level < count:
            return False
        self._level -= count
        return True

    def take_up_to(self, count: int, least: int) -> int:
        """As many as there are, at most ``count``; and ``least`` even if there are not, which is
        paid back first."""
        self._fill()
        taken = min(count, max(least, int(self._level)))
        self._level -= taken
        return taken

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._filled) * self._rate)
        self._filled = now
