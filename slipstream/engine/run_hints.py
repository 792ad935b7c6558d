"""The hints of one run, and the steps that used them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from slipstream.engine.hinting.calibration import Calibration
from slipstream.engine.hinting.hints import MOST_HINTS, Candidate, Hint, HintBox, Maker, Source, index_to_drop
from slipstream.engine.hinting.holding import Habit, Hold
from slipstream.engine.hinting.makers import GuessKeeper, InnerMaker, NgramMaker
from slipstream.engine.hinting.own_worth import CommonWorth, RunWorth
from slipstream.engine.hinting.selection import Offer


class HintTerms(NamedTuple):
    """Statement of a run's caller about its hints."""

    takes_ngrams: bool = False
    """True if the run makes hints itself from what followed the same tokens before."""
    fixed_count: int = 0
    """Hint tokens to verify in each step, as far as there are so many. 0: as many as pay."""
    longest_hold: float = 0.0
    """Longest time in seconds for which a step waits for a hint that is due."""
    takes_heads: bool = False
    """True if the target's heads make hints for the run, where it has heads."""


class RunHints:
    """The hints of one run. It belongs to the model thread, except for `offer`."""

    def __init__(self, terms: HintTerms, temperature_class: int) -> None:
        self.terms = terms
        self.temperature_class = temperature_class
        """See `slipstream.engine.hinting.calibration.temperature_class`."""
        self._may_come = True
        """False if a step has waited in vain, until there is a hint again."""
        self._habit = Habit()
        self._hold: Hold | None = None
        """Set if steps wait for hints while that pays."""
        self._held_since: float | None = None
        self._box = HintBox(self._judge)
        self._offered: list[Hint] = []
        """Hints that no step has seen yet. However many come meanwhile, each maker's last ones
        count."""
        self._lock = threading.Lock()
        """Guards the offered hints."""
        self._calibration = Calibration()
        self.guesses = GuessKeeper()
        """The place for the guesses of the heads."""
        self.heads_worth = RunWorth(CommonWorth())
        """The worth of such guesses for this run. `HeadWork.admit` lets it learn from others."""
        self._makers: list[InnerMaker] = [self.guesses, *([NgramMaker()] if terms.takes_ngrams else [])]

    def offer(self, hint: Hint) -> bool:
        """Leave a hint for the model thread. Returns True if there was none: then the thread has to
        be told. Any thread may call this."""
        with self._lock:
            self._offered.append(hint)
            if len(self._offered) > MOST_HINTS:
                del self._offered[index_to_drop(self._offered)]
            return len(self._offered) == 1

    def take_offered(self, chosen: Sequence[int]) -> None:
        """Keep the hints that were offered, except those that contradict the ``chosen`` tokens or
        are used up."""
        with self._lock:
            offered, self._offered = self._offered, []
        for hint in offered:
            if self._box.add(hint, chosen):
                self._may_come, self._habit.maker = True, hint.maker
                if self._hold is not None:
                    self._hold.record_hint(time.monotonic(), hint.next_due, hint.end)

    def bind(self, calibration: Calibration, habit: Habit) -> None:
        """Use what all runs have learnt, and teach it."""
        self._calibration, self._habit = calibration, habit
        if self.terms.longest_hold and not self.terms.fixed_count:
            self._hold = Hold(habit)

    @property
    def is_active(self) -> bool:
        """True if there may be a hint in the next step."""
        return len(self._box) > 0 or len(self._offered) > 0 or any(maker.may_hint for maker in self._makers)

    def best(self, chosen: Sequence[int], limit: int) -> tuple[Candidate, Offer] | None:
        """Return the hint that is expected to bring most of the next ``limit`` tokens after the
        ``chosen`` ones, and what it is worth; None if there is none."""
        if self.terms.fixed_count:
            limit = min(limit, self.terms.fixed_count)
        self.take_offered(chosen)
        if limit <= 0:
            return None
        candidates = self._box.candidates(chosen)
        for maker in self._makers:
            hint = maker.make(chosen, candidates)
            if hint is not None and self._box.add(hint, chosen):
                candidates = self._box.candidates(chosen)
        found = self._calibration.best(candidates, limit, self.temperature_class)
        if not self.terms.fixed_count:
            return None if found is None else (found[0], Offer(found[1]))
        if found is None:  # of a fixed length even the unlikely count
            found = (candidates[0], []) if candidates else None
        if found is None:
            return None
        candidate, survivals = found
        padded = [*survivals, *repeat(0.0, min(limit, len(candidate.tokens)) - len(survivals))]
        return candidate, Offer(padded, is_fixed=True)

    @property
    def is_holding(self) -> bool:
        """True while the next step waits for a hint."""
        return self._held_since is not None

    def held_until(
        self,
        found: tuple[Candidate, Offer] | None,
        limit: int,
        others_step: float | None,
        plain_rate: float,
        now: float,
    ) -> float | None:
        """Return the time until which the next step waits for a better hint than ``found``; None if
        it does not wait. Times are of the monotonic clock.

        It may use ``limit`` hint tokens. ``others_step``: seconds of a step of the other runs that
        would begin now; None if no other run is ready. ``plain_rate``: tokens a second of a run
        without hints.
        """
        until = None
        maker = self._habit.maker
        if self._hold is not None and maker is not None and limit > 0:
            survival = None if found is None else found[1].survivals[-1]
            odds = self._calibration.mean(maker, self.temperature_class)
            until = self._hold.until(now, survival, odds, others_step, self.terms.longest_hold, plain_rate)
        elif self._may_come and self._is_too_short(found, min(self.terms.fixed_count, limit)):
            until = (self._held_since or now) + self.terms.longest_hold
            if now >= until:
                until, self._may_come = None, False
        if until is not None:
            self._held_since = self._held_since or now
        return until

    def _is_too_short(self, found: tuple[Candidate, Offer] | None, wanted: int) -> bool:
        """Return whether a fixed length wants a longer hint, and one may be on its way."""
        if found is None:
            return wanted > 0
        candidate, offer = found
        return wanted > len(offer.survivals) and candidate.hint.next_due is not None

    def record_step(self, now: float, length: int, forward: float) -> float:
        """Record that a step ended whose forward took so many seconds; the tokens are ``length``
        with its choices. Returns the seconds for which it was held."""
        if self._hold is not None:
            self._hold.record_step(now, length)
        if self._held_since is None:
            return 0.0
        held, self._held_since = max(0.0, now - forward - self._held_since), None
        return held

    def _judge(self, maker: Maker, odds: float, is_right: bool) -> None:
        self._calibration.judge(maker, odds, is_right, self.temperature_class)


class RunStep(NamedTuple):
    """A step that verified hint tokens, or a stretch of steps without any."""

    token_count: int
    """Tokens that it chose."""
    hint_count: int = 0
    """Hint tokens that it verified."""
    accepted_count: int = 0
    """Number of them that the target chose too, up to the end of the run."""
    source: Source | None = None
    forward: float = 0.0
    """Seconds of its forwards, with the choices."""
    held: float = 0.0
    """Seconds for which the run sat out before it, because a hint was due."""
    source_id: int = 0
    """The hint's `Hint.source_id`."""

    def then(self, other: RunStep) -> RunStep:
        """Return two stretches without hints as one."""
        return RunStep(self.token_count + other.token_count, forward=self.forward + other.forward, held=self.held)


def merged(steps: Sequence[RunStep]) -> list[RunStep]:
    """Return consecutive steps with each stretch without hints as one."""
    result: list[RunStep] = []
    for step in steps:
        if result and not step.hint_count and not step.held and not result[-1].hint_count:
            result[-1] = result[-1].then(step)
        else:
            result.append(step)
    return result
