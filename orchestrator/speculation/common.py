"""The one way to run rounds that all sessions of a pair take, plain decoding among them. Pure.

Sessions share a draft and a verifier: where some have the draft prepare branches, the others'
proposals come later too; one that drafts beside many that do not misses their step. A forecast for
one session sees nothing of it. Taken by all at a time, each way shows what it brings, which
corrects its forecasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.speculation.plan import Overlap
from orchestrator.speculation.switch import TRY_ROUNDS, Switch

_FAVOUR = 1.03
"""Another way to draft than the present one must be better by this factor: forecasts are noisy, and
a change costs a round. And so must overlapping than waiting, which leaves the draft alone and loses
less where a forecast was wrong: both together where all wait just now."""

_FIRST_RETRY, _FARTHER, _LAST_RETRY = 24.0, 4.0, 4096.0
"""Rounds of every session from one try of another way to draft to the next: soon, for a way that
was never taken is known by what others have shown, and then ever more seldom. A try costs four
rounds where draft and verifier share processors."""

_FIRST_PLAIN = 96.0
"""Rounds of every session to the first try of plain decoding, where drafting pays; then as for
another way to draft."""

_SEEN_ENOUGH = 2.0
"""Rounds of another way between two tries, of sessions that were asked to run them, that stand for
a try."""

_STAY_ROUNDS = 4
"""Rounds of every session that a way is kept for, where there are several: until it has shown what
it brings."""


class _Retry:
    """When to try another way to draft than the best. What is known of it is from when it was taken
    last: it may have been true of a slow minute only, and no round would ever show that it is
    over."""

    def __init__(self) -> None:
        self.trying = False
        """Whether the last answer was another way, for `TRY_ROUNDS`."""
        self._best: Overlap | None = None
        self._seen: Mapping[Overlap, float] = {}
        """When the last try was over."""
        self._rounds = 0.0
        self._distance = _FIRST_RETRY

    def end(self, seen: Mapping[Overlap, float]) -> None:
        """If this was a try, it is over."""
        if self.trying:
            self.trying, self._seen = False, seen

    def is_due(self, rounds: float) -> bool:
        """Whether another way is to be tried, so many rounds after the last call of `way`."""
        return self._rounds + rounds >= self._distance

    def way(
        self, best: Overlap, rates: Mapping[Overlap | None, float], rounds: float, seen: Mapping[Overlap, float]
    ) -> Overlap:
        """The way to take where one is the ``best``, ``rounds`` after the last call. ``seen``:
        rounds of each way so far, those included that were asked for: one that is seen anyway needs
        no try."""
        if best is not self._best:
            self._best, self._rounds, self._distance, self._seen = best, 0.0, _FIRST_RETRY, seen
        if not self.is_due(rounds):
            self._rounds += rounds
            return best
        self._rounds, self._distance = 0.0, min(_FARTHER * self._distance, _LAST_RETRY)
        others = [way for way in rates if way is not None and (way is Overlap.NONE) != (best is Overlap.NONE)]
        if not others:
            return best
        other = max(others, key=rates.__getitem__)
        self.trying = seen.get(other, 0.0) - self._seen.get(other, 0.0) < _SEEN_ENOUGH
        self._seen = seen
        return other if self.trying else best


class _PlainRetry:
    """When to decode plainly for once, where drafting pays. What is known of that is from when all
    did last, or from rounds beside others that drafted: it may make drafting seem worth while for
    ever."""

    def __init__(self) -> None:
        self.trying = False
        """Whether the last answer was to, for `TRY_ROUNDS`."""
        self._rounds = 0.0
        self._distance = _FIRST_PLAIN

    def is_due(self, rounds: float) -> bool:
        """Whether it is time to, so many rounds after the last call of `takes`."""
        return self._rounds + rounds >= self._distance

    def takes(self, rounds: float) -> bool:
        """Whether to, ``rounds`` after the last call."""
        self.trying = self.is_due(rounds)
        self._rounds += rounds
        if self.trying:
            self._rounds, self._distance = 0.0, min(_FARTHER * self._distance, _LAST_RETRY)
        return self.trying


class _Load:
    """What is known of each way with about as many sessions."""

    def __init__(self) -> None:
        self.switch = Switch()
        self.retry = _Retry()
        self.plain_retry = _PlainRetry()
        self.rates: dict[Overlap | None, float] = {}
        """The sessions' mean forecasts, in tokens a second."""
        self.rounds = 0.0

    def observe(self, rates: Mapping[Overlap | None, float], session_count: int, rounds: int) -> None:
        """One session's forecasts."""
        self.rounds += rounds / session_count
        worth = {way: max(rate, rates.get(None, 0.0)) for way, rate in rates.items()}  # some are better off without
        if worth.keys() != self.rates.keys() or self.plain_retry.trying:  # what is compared is of one time
            self.rates = worth
        for way, rate in worth.items():
            self.rates[way] += (rate - self.rates[way]) / session_count

    def best(self, current: Overlap | None, seen: Mapping[Overlap, float]) -> Overlap | None:
        """The way to take after the current one."""
        weighed = {
            way: rate * _FAVOUR ** ((way is current) + (way is Overlap.NONE))
            for way, rate in self.rates.items()
            if way is not None
        }
        best = max(weighed, key=weighed.__getitem__)
        plain = self.rates.get(None)
        if plain is None:
            return best
        rounds, self.rounds = self.rounds, 0.0
        self.retry.end(seen)
        if not self.switch.drafts(self.rates[best] / plain, rounds):
            self.plain_retry = _PlainRetry()
            return None
        if self.switch.trying:
            return best
        return None if self.plain_retry.takes(rounds) else self.retry.way(best, self.rates, rounds, seen)

    @property
    def trying(self) -> bool:
        """Whether the last answer was only to see what a way brings by now."""
        return self.switch.trying or self.retry.trying or self.plain_retry.trying

    def is_due(self, rounds: float) -> bool:
        """Whether another way is to be tried, so many rounds after the last answer."""
        return self.retry.is_due(self.rounds + rounds) or self.plain_retry.is_due(self.rounds + rounds)


class CommonWay:
    """Weighs every session's forecasts, and tells each what to do next."""

    def __init__(self) -> None:
        self.way: Overlap | None = None
        self._loads: dict[int, _Load] = {}
        self._load = _Load()
        self._stay = 0
        self._begun = 0
        """Rounds since any session asked last."""

    @property
    def trying(self) -> bool:
        """Whether all draft, draft in another way or decode plainly, only to see whether it has
        become worth while."""
        return self._load.trying

    def is_due(self, session_count: int) -> bool:
        """Whether the next one to weigh may try another way."""
        return self._load.is_due(self._begun / session_count)

    def begin_round(self) -> None:
        """A session that has a choice begins a round, asking or not: one of short turns hardly asks
        twice."""
        self._begun += 1

    def choose(
        self,
        rates: Mapping[Overlap | None, float],
        session_count: int,
        load: int,
        seen: Mapping[Overlap, float] = MappingProxyType({}),
    ) -> Overlap | None:
        """The way of the round that has just begun of a session, one of ``session_count``.
        ``load``: what is known is kept for each.

        ``rates`` are its forecasts in tokens a second, None's of plain decoding: left out while
        nothing is known that would speak for it. ``seen`` are rounds of each way so far, of
        sessions that have no choice too.
        """
        self._enter(load, session_count)
        rounds, self._begun = self._begun, 0
        self._load.observe(rates, session_count, rounds)
        self._stay -= rounds
        if self._stay < 0:
            self._take(self._load.best(self.way, seen), session_count)
        return self.way

    def _enter(self, load: int, session_count: int) -> None:
        """Go on with what is known of this load; where nothing is, in the way of the last one until
        all have asked."""
        if self._load is self._loads.get(load):
            return
        self._stay = 0
        if load not in self._loads:
            self._stay = session_count - 1 if self.way is not None else 0
            self._loads[load] = _Load()
        self._load = self._loads[load]

    def _take(self, way: Overlap | None, session_count: int) -> None:
        if self.trying:
            self._stay = TRY_ROUNDS * session_count - 1
        elif way is not self.way:
            self._stay = _STAY_ROUNDS * (session_count - 1)
        self.way = way
