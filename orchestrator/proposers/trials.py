"""Find out by trial whether hints pay where draft and target share processors. Pure.

::

    without | with | without | with | .. | with | with | with | .. | without | with | with ..
    '--- a trial --' '--- a trial --'   '-- the better way --'   '--- a trial --'

On shared processors each of the draft's steps makes the target's slower, and messages take time
too. No forecast covers all of that. So windows with hints and without them follow one another, and
the median of their ratios decides. Both windows of a trial meet the same load.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from statistics import median

WINDOW_SECONDS = 0.1
"""Shortest window. More: a window's rate is steadier, but a trial of the worse way costs more."""

WINDOW_TOKENS = 32
"""Fewest tokens of a window for each session that runs at a time."""

SETTLING_TOKENS = 16
"""Tokens of a session after a switch in mid-turn that do not count: what was under way is neither
with hints nor without."""

REMEMBERED = 7
"""Trials whose median decides. The first ones follow one another at once. More: fewer wrong
decisions, but a change is followed later."""

CLEAR = 0.3
"""Logarithm of a ratio from which on two trials that agree are enough. Less: chance decides more
often. More: a draft that halves the rate costs more before it is left out."""

GRADES, GRADED_TOKENS = (0.5, 0.8), 64
"""Borders of sessions' grades, and the verified hint tokens after which one counts a third as much.
More borders: unlike sessions share fewer trials, but each grade pays for its own."""

TRIAL_COST = 0.02
"""Share of its tokens that a pair may lose by trials of the worse way. More: a change is followed
earlier."""


class Trials:
    """Trials of one pair of draft and target, over all its sessions."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._log_ratios: deque[float] = deque(maxlen=REMEMBERED)
        """Logarithms of the rate with hints over that without."""
        self._rates: dict[bool, float] = {}
        """Rates of the trial's windows so far, by whether there were hints."""
        self._until_trial = 0
        self._is_on = True
        self._begin()

    @property
    def is_on(self) -> bool:
        """True if there should be hints now."""
        return self._is_on

    @property
    def pays(self) -> bool:
        """True unless the last trials were better without hints."""
        if self._is_clear:
            return self._log_ratios[-1] > 0
        return not self._log_ratios or median(self._log_ratios) >= 0

    def record(self, began: float, ended: float, token_count: int) -> None:
        """Record that a session got tokens between two times of the clock."""
        if began < self._began or ended <= began:  # it began before hints were switched on or off
            return
        self._tokens += token_count
        self._seconds += ended - began
        elapsed = self._clock() - self._began
        if elapsed < WINDOW_SECONDS:
            return
        session_count = max(1.0, self._seconds / elapsed)  # at a time; a chat may end in the window
        if self._tokens >= WINDOW_TOKENS * session_count:
            self._end(self._tokens / self._seconds)

    def _windows_between(self) -> int:
        """Return how many windows of the better way come before the next trial; 0 if it is not
        known yet, or if the last trial was clearly against it."""
        ratios = self._log_ratios
        is_known = len(ratios) == REMEMBERED or self._is_clear
        if not is_known or (abs(ratios[-1]) >= CLEAR and (ratios[-1] > 0) != self.pays):
            return 0
        lost = 1 - math.exp(-abs(ratios[-1] if self._is_clear else median(ratios)))
        return 1 + int(lost / TRIAL_COST)

    @property
    def _is_clear(self) -> bool:
        """True if the last two trials show the same large difference."""
        recent = [*self._log_ratios][-2:]
        return len(recent) == 2 and (min(recent) >= CLEAR or max(recent) <= -CLEAR)

    def _begin(self) -> None:
        self._began = self._clock()
        self._tokens = 0
        self._seconds = 0.0

    def _end(self, rate: float) -> None:
        if self._until_trial:
            self._until_trial -= 1
        else:
            self._rates[self._is_on] = rate
        if len(self._rates) == 2:
            self._log_ratios.append(math.log(self._rates[True] / self._rates[False]))
            self._rates.clear()
            self._until_trial = self._windows_between()
        if self._until_trial:
            self._is_on = self.pays
        else:  # the other way, then the one before
            self._is_on = not self._is_on
        self._begin()


class Grade:
    """A session's grade: how many of its verified hint tokens were right of late. What pays for one
    grade need not pay for another."""

    def __init__(self) -> None:
        self._verified = self._accepted = 0.0

    def record(self, verified: int, accepted: int) -> None:
        """Record a step that verified so many hint tokens."""
        decay = (1 - 1 / GRADED_TOKENS) ** verified
        self._verified = self._verified * decay + verified
        self._accepted = self._accepted * decay + accepted

    @property
    def value(self) -> int:
        """The grade; 0 while too little is known."""
        if self._verified < GRADED_TOKENS / 2:
            return 0
        return 1 + bisect_right(GRADES, self._accepted / self._verified)


class SharedProcessors:
    """State that all sessions of a draft share that computes on its target's processors."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._trials: dict[tuple[int, int], Trials] = {}
        self.run_count = 0
        """Runs that its sessions have now."""

    def trials_of(self, temperature: float, grade: int) -> Trials:
        """Return the trials of sessions at about this temperature and of this `Grade`."""
        return self._trials.setdefault((min(4, math.ceil(2 * temperature)), grade), Trials(self._clock))
