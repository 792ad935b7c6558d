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

LONGEST_HOLD = 0.05
"""Longest time in seconds for which a step waits for a hint on shared processors."""

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

CLEAR = 0.5
"""Sum of the logarithms of the last ratios, over the square root of their number, from which on
they are enough; but at least two. It is about two standard deviations of one. Less: chance decides
more often. More: a draft that halves the rate costs more before it is left out."""

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
        shown = self._shown
        return not self._log_ratios or (median(self._log_ratios) if shown is None else shown) >= 0

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
        shown, last = self._shown, self._log_ratios[-1]
        if shown is None or (abs(last) >= CLEAR / 2 and (last > 0) != (shown > 0)):
            return 0
        return 1 + int((1 - math.exp(-abs(shown))) / TRIAL_COST)

    @property
    def _shown(self) -> float | None:
        """The logarithm of the ratio that the fewest last trials show which are enough; None if
        there are too few."""
        total = 0.0
        for count, ratio in enumerate(reversed(self._log_ratios), 1):
            total += ratio
            if count > 1 and abs(total) >= CLEAR * math.sqrt(count):
                return total / count
        return median(self._log_ratios) if len(self._log_ratios) == REMEMBERED else None

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
