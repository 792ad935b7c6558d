"""Simulated time, and processors that forwards share."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial


class Clock:
    """Simulated time: what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let something happen later."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, event))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let things happen until it is over."""
        while self._events and not is_over():
            self.now, _, event = heapq.heappop(self._events)
            event()


class Processor:
    """Divides its time equally among the forwards that run on it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: list[tuple[float, Callable[[], None]]] = []
        self._since = 0.0
        self._turn = 0

    def start(self, seconds: float, done: Callable[[], None]) -> None:
        """Begin a forward that would take so long alone."""
        self._progress()
        self._left.append((seconds, done))
        self._schedule()

    def _progress(self) -> None:
        share = (self._clock.now - self._since) / max(1, len(self._left))
        self._left = [(left - share, done) for left, done in self._left]
        self._since = self._clock.now

    def _schedule(self) -> None:
        self._turn += 1
        if self._left:
            seconds = max(0.0, min(left for left, _ in self._left)) * len(self._left)
            self._clock.after(seconds, partial(self._finish, self._turn))

    def _finish(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._progress()
        index = min(range(len(self._left)), key=lambda i: self._left[i][0])
        _, done = self._left.pop(index)
        self._schedule()
        done()
