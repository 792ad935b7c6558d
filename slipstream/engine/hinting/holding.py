"""Holding: a run sits out for a hint that is due. Pure: the caller tells the time.

A run holds while the tokens that the next hints are expected to add exceed the tokens that it
would make in the time until the first step that could hold them. The price is the same as for
verifying a row: the tokens a second that the run makes now.

It pays where draft and verifier share processors, because the draft's work makes the target's steps
longer anyway. Where each has its own, the same hint comes during the next step. A run that waits
for it gains nothing in the simulation, and without branches it loses up to a tenth. So the caller
lets runs hold only on shared processors and for fixed lengths.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from slipstream.engine.hinting.hints import MOST_TOKENS

STEPS_OF_PACE = 16
"""Steps after which a step counts a third as much in a run's tokens a second. More: the price is
steadier, but it follows a change later."""

SLACK = 1.25
"""Wait for a hint as long as its usual delay times this. More: fewer hints miss the step that
waited for them, but a missing hint costs more."""

PROMISES_OF_TRUST = 8
"""Hints that were due after which one counts a third as much in the share that came in time. More:
a maker that stops to answer costs more."""

_RECENT_DELAYS = 5


class Hold:
    """The hints that are due for one run, and what they are worth. Times are in seconds."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        self._ended = 0.0
        self._length = 0
        self._missing_since: float | None = None
        self._is_held = False
        self._trust = 1.0
        self._delays: deque[float] = deque(maxlen=_RECENT_DELAYS)
        self._due = self._gap = math.inf

    @property
    def tokens_per_second(self) -> float:
        """The rate of the run now; 0 before its second step."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def record_step(self, now: float, length: int) -> None:
        """Record that a step of the run ended and its tokens leave: ``length`` is that of all
        chosen tokens."""
        if self._is_held:  # the hint did not come
            self._record_promise(kept=False)
        if self._length:
            decay = 1 - 1 / STEPS_OF_PACE
            self._tokens = self._tokens * decay + length - self._length
            self._seconds = self._seconds * decay + now - self._ended
        self._ended, self._length = now, length

    def record_hint(self, now: float, next_due: float | None) -> None:
        """Record that a hint arrived which follows the chosen tokens."""
        if self._missing_since is not None:
            self._delays.append(now - self._missing_since)
            self._missing_since = None
            if self._is_held:
                self._record_promise(kept=True)
        elif self._due < math.inf:
            self._record_promise(kept=now <= self._due + (SLACK - 1) * self._gap)
        self._gap = math.inf if next_due is None else next_due
        self._due = now + self._gap

    def until(
        self, now: float, survival: float | None, odds: float, others_step: float | None, longest: float
    ) -> float | None:
        """Return the time until which to hold the run; None to step now.

        ``survival`` is that of the last token of the hint in hand, None if there is none; ``odds``
        are those of a token of the maker that is due. ``others_step``: seconds of a step of the
        other runs, which would begin now; None if no other run is ready.
        """
        if survival is None and self._missing_since is None:
            self._missing_since = now
        due, limit = self._next_due(), self._ended + longest
        if not now < due <= limit or not self._seconds:
            return None
        wait = due - now
        if others_step is not None:
            wait = max(1, math.ceil(wait / others_step)) * others_step
        if self._gain(1.0 if survival is None else survival, odds, wait) <= 0:
            return None
        self._is_held = True
        return min(now + SLACK * (due - now), limit)

    def _next_due(self) -> float:
        """Return when the next useful hint is due. Its maker's statement counts if its last hint
        follows the text; else the usual time from a miss to the next hint."""
        if self._missing_since is None:
            return self._due
        return self._missing_since + median(self._delays) if self._delays else math.inf

    def _gain(self, survival: float, odds: float, wait: float) -> float:
        """Return the tokens that waiting gains: those of the first hint and of the ones after it
        that are worth their own wait, less those that the run would make meanwhile."""
        price = self.tokens_per_second
        gain = -price * wait
        for _ in range(MOST_TOKENS):
            survival *= odds
            gain += survival * self._trust
            if survival * odds <= price * self._gap:
                break
            gain -= price * self._gap
        return gain

    def _record_promise(self, kept: bool) -> None:
        self._is_held = False
        self._trust += (kept - self._trust) / PROMISES_OF_TRUST


def divide(
    holds: Sequence[Callable[[float | None], float | None]], step_seconds: Callable[[int], float]
) -> tuple[list[int], float]:
    """Return which of the ready runs step now, and when to look again if none does.

    ``holds`` tell for each run, given the time of a step of others, until when it would hold.
    ``step_seconds`` gives the seconds of a step of so many runs. A run may hold alone, but if
    others step, it would miss their whole step.
    """
    alone = [hold(None) for hold in holds]
    stepping = [index for index, until in enumerate(alone) if until is None]
    if not stepping:
        return [], min([until for until in alone if until is not None], default=math.inf)
    others = step_seconds(len(stepping))
    for index, until in enumerate(alone):
        if until is not None and holds[index](others) is None:
            stepping.append(index)
    return sorted(stepping), math.inf
