"""A budget of spans a second: it bounds the cost of tracing for any number of rounds. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable


class SpanBudget:
    """A token bucket for spans."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow ``rate`` spans a second, and at most ``most`` at once."""
        self._rate = rate
        self._most = most
        self._clock = clock
        self._level = most
        self._filled = clock()

    def spend(self, count: int) -> bool:
        """Spend ``count`` spans; return False if there are not as many."""
        self._fill()
        if self._level < count:
            return False
        self._level -= count
        return True

    def spend_up_to(self, count: int, least: int) -> int:
        """Spend as many spans as there are, at most ``count``; return their number.

        It spends ``least`` even beyond the budget, and later spans pay that back.
        """
        self._fill()
        taken = min(count, max(least, int(self._level)))
        self._level -= taken
        return taken

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._filled) * self._rate)
        self._filled = now
