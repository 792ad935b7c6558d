"""The one way to run rounds that all sessions of a pair take, plain decoding among them. Pure.

Sessions share a draft and a verifier: where some have the draft prepare branches, the others' proposals come later too; one
that drafts beside many that do not misses their step. A forecast for one session sees nothing of it. Taken by all at a
time, each way shows what it brings, which corrects its forecasts.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.speculation.plan import Overlap, load_of
from orchestrator.speculation.switch import TRY_ROUNDS, Switch

_LOYALTY = 1.03
"""Another way to draft must be better by this factor: forecasts are noisy, and a change costs a round."""

_SETTLING_ROUNDS, _ARRIVAL_ROUNDS = 2, 2
"""Rounds of every session that show nothing after a change of way, and after one of load: they wait for prompts."""

_STAY_ROUNDS = 4
"""Rounds of every session that a way is kept for, where there are several: until it has shown what it brings."""


class _Load:
    """What is known of each way with about as many sessions."""

    def __init__(self, rates: dict[Overlap | None, float]) -> None:
        self.switch = Switch()
        self.rates = rates
        """The sessions' mean forecasts, in tokens a second."""
        self.rounds = 0.0

    def observe(self, rates: Mapping[Overlap | None, float], session_count: int, rounds: int) -> None:
        """One session's forecasts."""
        self.rounds += rounds / session_count
        for way, rate in rates.items():
            worth = max(rate, rates.get(None, 0.0))  # one that is better off without the draft does without
            known = self.rates.get(way, worth)
            self.rates[way] = known + (worth - known) / session_count

    def best(self, current: Overlap | None) -> Overlap | None:
        """The way to take after the current one."""
        weighed = {
            way: rate * (_LOYALTY if way is current else 1) for way, rate in self.rates.items() if way is not None
        }
        best = max(weighed, key=weighed.__getitem__)
        plain = self.rates.get(None)
        if plain is None:
            return best
        rounds, self.rounds = self.rounds, 0.0
        return best if self.switch.drafts(self.rates[best] / plain, rounds) else None


class CommonWay:
    """Weighs every session's forecasts, and tells each what to do next."""

    def __init__(self) -> None:
        self.way: Overlap | None = None
        self._loads: dict[int, _Load] = {}
        self._load = _Load({})
        self._stay = 0
        self._settling = 0

    @property
    def trying(self) -> bool:
        """Whether all draft only to see whether it has become worth while."""
        return self._load.switch.trying

    def shows(self, way: Overlap | None) -> bool:
        """Whether all sessions run rounds in this way, and have for a round."""
        return way is self.way and self._settling <= 0

    def choose(self, rates: Mapping[Overlap | None, float], session_count: int, rounds: int = 1) -> Overlap | None:
        """The way of the next round of a session, one of ``session_count``, that has run ``rounds`` since it last asked.

        ``rates`` are its forecasts in tokens a second, None's of plain decoding: left out while nothing is known that
        would speak for it.
        """
        self._enter(session_count)
        self._load.observe(rates, session_count, rounds)
        self._stay -= rounds
        self._settling -= rounds
        if self._stay < 0:
            self._take(self._load.best(self.way), session_count)
        return self.way

    def _enter(self, session_count: int) -> None:
        """Go on with what is known of this load; where nothing is, with the last one's forecasts until all have asked."""
        load = load_of(session_count)
        if self._load is self._loads.get(load):
            return
        self._stay = 0
        if load not in self._loads:
            self._stay = session_count - 1 if self._load.rates else 0
            self._loads[load] = _Load(dict(self._load.rates))
        self._load = self._loads[load]
        self._settling = _ARRIVAL_ROUNDS * (session_count - 1)

    def _take(self, way: Overlap | None, session_count: int) -> None:
        if self.trying:
            self._stay = TRY_ROUNDS * session_count - 1
        elif way is not self.way:
            self._stay = _STAY_ROUNDS * (session_count - 1)
        if way is not self.way:
            self._settling = max(self._settling, _SETTLING_ROUNDS * (session_count - 1))
        self.way = way
