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

from slipstream.engine.hinting.hints import MOST_TOKENS, Maker
from slipstream.pace import Pace

SLACK = 1.25
"""Wait for a hint as long as its usual delay times this. More: fewer hints miss the step that
waited for them, but a missing hint costs more."""

PROMISES_OF_TRUST = 8
"""Hints that were due after which one counts a third as much in the share that came in time. More:
a maker that stops to answer costs more."""

_RECENT_DELAYS = 5
"""Delays, and times for a token, whose median counts. More: chance changes them less, but they
follow a change later."""


class Habit:
    """Times of the hints of all runs, as they came of late, in seconds. Answers are often short, so
    no run learns them by itself."""

    def __init__(self) -> None:
        self.maker: Maker | None = None
        """The maker of the last hint."""
        self.trust = 1.0
        """Share of the promised hints that came in time."""
        self.delays: deque[float] = deque(maxlen=_RECENT_DELAYS)
        """Times from a step after which no hint was in hand to the next hint."""
        self.token_times: deque[float] = deque(maxlen=_RECENT_DELAYS)
        """Times from hint to hint, for each token that was new."""

    def record_promise(self, kept: bool) -> None:
        """Record whether a hint that was due came in time."""
        self.trust += (kept - self.trust) / PROMISES_OF_TRUST


class Hold:
    """The hints that are due for one run, and what they are worth. Times are in seconds."""

    def __init__(self, habit: Habit) -> None:
        self._habit = habit
        self._pace = Pace()
        self._ended = 0.0
        self._length = 0
        self._missing_since: float | None = None
        self._is_held = False
        self._due = self._gap = math.inf
        self._hinted: tuple[float, int] | None = None
        """When the last hint came that followed the chosen tokens, and where it ended."""

    @property
    def tokens_per_second(self) -> float:
        """The rate of the run now; 0 before its second step."""
        return self._pace.tokens_per_second

    def record_step(self, now: float, length: int) -> None:
        """Record that a step of the run ended and its tokens leave: ``length`` is that of all
        chosen tokens."""
        if self._is_held:  # the hint did not come
            self._record_promise(kept=False)
        if self._length:
            self._pace.record(length - self._length, now - self._ended)
        self._ended, self._length = now, length

    def record_hint(self, now: float, next_due: float | None, end: int) -> None:
        """Record that a hint arrived which follows the chosen tokens, up to position ``end``."""
        if self._missing_since is not None:
            self._habit.delays.append(now - self._missing_since)
            self._missing_since = None
            if self._is_held:
                self._record_promise(kept=True)
        elif self._due < math.inf:
            self._record_promise(kept=now <= self._due + (SLACK - 1) * self._gap)
            if self._hinted is not None and end > self._hinted[1]:
                last, last_end = self._hinted
                self._habit.token_times.append((now - last) / (end - last_end))
        self._hinted = now, end
        self._gap = math.inf if next_due is None else next_due
        self._due = now + self._gap

    def until(
        self,
        now: float,
        survival: float | None,
        odds: float,
        others_step: float | None,
        longest: float,
        plain_rate: float = 0.0,
    ) -> float | None:
        """Return the time until which to hold the run; None to step now.

        ``survival`` is that of the last token of the hint in hand, None if there is none; ``odds``
        are those of a token of the maker that is due. ``others_step``: seconds of a step of the
        other runs, which would begin now; None if no other run is ready. ``plain_rate``: tokens a
        second of a run without hints; they count before the run's second step.
        """
        if survival is None and self._missing_since is None:
            self._missing_since = now
        due, limit = self._next_due(), self._ended + longest
        price = self.tokens_per_second or plain_rate
        if not now < due <= limit or not price:
            return None
        wait = due - now
        if others_step is not None:
            wait = max(1, math.ceil(wait / others_step)) * others_step
        if self._gain(1.0 if survival is None else survival, odds, wait, price) <= 0:
            return None
        self._is_held = True
        return min(now + SLACK * (due - now), limit)

    def _next_due(self) -> float:
        """Return when the next useful hint is due. Its maker's statement counts if its last hint
        follows the text; else the usual time from a miss to the next hint."""
        if self._missing_since is None:
            return self._due
        return self._missing_since + median(self._habit.delays) if self._habit.delays else math.inf

    def _gain(self, survival: float, odds: float, wait: float, price: float) -> float:
        """Return the tokens that waiting gains: the next token and the ones after it that are worth
        their own time, less those that the run would make meanwhile."""
        token_times = self._habit.token_times
        token_price = price * (median(token_times) if token_times else self._gap)
        gain = -price * wait
        for _ in range(MOST_TOKENS):
            survival *= odds
            gain += survival * self._habit.trust
            if survival * odds <= token_price:
                break
            gain -= token_price
        return gain

    def _record_promise(self, kept: bool) -> None:
        self._is_held = False
        self._habit.record_promise(kept)


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
