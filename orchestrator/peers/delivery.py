"""Delivery of results to the turns that wait for them: at once, or under load several at a time.

Each wake-up of a turn costs the event loop the same, whether the turn finds one token or ten. So
turns are woken together, and with many of them the loop spends at most a quarter of its time on
what that causes. Otherwise it reads what arrives, and parts of one run become one. A few turns
hardly wait: their drafts wait for what they commit.
"""

from __future__ import annotations

import asyncio
import time

_MOST_REST, _FULL_LOAD = 3, 32
"""Rest after a wake-up of so many turns, in times of the work that it caused; fewer turns have as
much less. More rest: under load a token takes less processor time, but comes in larger parts."""

_LONGEST_REST = 0.05
"""Longest rest in seconds: what kept the loop busy may have been something else."""

_PASSES = 3
"""Passes of the event loop that a wake-up keeps busy: turns, then readers, then what they send."""


class Delivery:
    """Sets the events of turns whose results have arrived."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Event] = []
        self._is_planned = False
        self._free_at = 0.0
        """When turns may be woken again, by the event loop's clock."""

    def put(self, arrived: asyncio.Event) -> None:
        """Set ``arrived`` as soon as the event loop has time for it."""
        self._waiting.append(arrived)
        if not self._is_planned:
            self._is_planned = True
            loop = asyncio.get_running_loop()
            early = self._free_at - loop.time()
            if early > 0:
                loop.call_later(early, self._wake)
            else:
                loop.call_soon(self._wake)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._is_planned = False
        for arrived in waiting:
            arrived.set()
        rest = _MOST_REST * min(1.0, len(waiting) / _FULL_LOAD)
        asyncio.get_running_loop().call_soon(self._measure, time.thread_time(), rest, _PASSES)

    def _measure(self, began: float, rest: float, passes: int) -> None:
        """Rest for ``rest`` times as long as the loop has worked since it ``began``. Time of other
        processes does not count."""
        loop = asyncio.get_running_loop()
        if passes:
            loop.call_soon(self._measure, began, rest, passes - 1)
        else:
            self._free_at = loop.time() + min(_LONGEST_REST, rest * (time.thread_time() - began))
