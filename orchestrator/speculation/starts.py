"""What of a proposal's time are its steps, and what comes with any: going over what was committed
since, and being asked. Pure.

Divided by the steps alone, a short proposal's step seems slow and a long one's fast, so that
whichever length is taken looks like the right one. Of proposals of different lengths a line says
both::

    seconds = start + steps * step
"""

from __future__ import annotations

_KEEP = 0.95
"""Of older proposals' weight by each new one."""

HICCUP = 4.0
"""A time above so many times the expected one is a machine's hiccup and not its speed."""

_NOTHING = 0.1
"""What no steps in no time weigh."""


class StartAndStep:
    """The line through proposals of different lengths, older ones fading, by least squares. One of
    no steps that took no time is added, with a tenth of one's weight: while all have the same
    length, all of their time is their steps'."""

    def __init__(self) -> None:
        self._weight = self._steps = self._seconds = self._squares = self._products = 0.0

    def observe(self, steps: int, seconds: float, share: float = 1.0) -> None:
        """A proposal of ``steps`` steps took so long; one of several with a ``share`` in it."""
        if self._weight:
            seconds = min(seconds, HICCUP * (self.start + steps * self.step))
        keep = 1 - (1 - _KEEP) * share
        self._weight = self._weight * keep + share
        self._steps = self._steps * keep + share * steps
        self._seconds = self._seconds * keep + share * seconds
        self._squares = self._squares * keep + share * steps * steps
        self._products = self._products * keep + share * steps * seconds

    @property
    def step(self) -> float:
        """Seconds of a step; 0 while nothing is known."""
        weight = self._weight + _NOTHING
        spread = self._squares - self._steps * self._steps / weight
        if not spread:
            return 0.0
        slope = (self._products - self._steps * self._seconds / weight) / spread
        return min(max(slope, 0.0), self._seconds / self._steps)

    @property
    def start(self) -> float:
        """Seconds of what comes with any number of steps: what is left of the mean."""
        return (self._seconds - self._steps * self.step) / self._weight if self._weight else 0.0
