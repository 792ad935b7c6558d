"""The one way to run rounds that all sessions of a pair take. Pure.

Sessions share a draft and a verifier: where some have the draft prepare branches, the others' proposals come later too, and
a forecast for one session sees nothing of it. Taken by all at a time, each way shows what it brings, which corrects its
forecasts.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.speculation.plan import Overlap

_LOYALTY = 1.03
"""Another way must be better by this factor: forecasts are noisy, and a change costs a round."""

_STAY_ROUNDS = 4
"""Rounds of every session that a way is kept for, where there are several: until it has shown what it brings."""

_SECOND_LOOK_ROUNDS, _NEAR = 200, 0.7
"""Rounds of every session after which a way that has not been taken gets another try, if its forecast was not far off."""


class CommonWay:
    """Weighs every session's forecasts, and tells each what to do next."""

    def __init__(self) -> None:
        self.way: Overlap | None = None
        self._rates: dict[Overlap, float] = {}
        self._rounds_without = dict.fromkeys(Overlap, 0)
        self._stay = 0
        self._settling = 0

    def shows(self, way: Overlap) -> bool:
        """Whether all sessions run rounds in this way, and have for a round."""
        return way is self.way and self._settling <= 0

    def choose(self, rates: Mapping[Overlap, float], session_count: int) -> Overlap:
        """The way of a session's next round, given its forecasts in tokens a second, one of ``session_count``."""
        for way, rate in rates.items():
            known = self._rates.get(way, rate)
            self._rates[way] = known + (rate - known) / session_count
            self._rounds_without[way] += 1
        self._stay -= 1
        self._settling -= 1
        if self.way is None or self._stay < 0:
            self.way = self._best(session_count)
        self._rounds_without[self.way] = 0
        return self.way

    def _best(self, session_count: int) -> Overlap:
        weighed = {way: rate * (_LOYALTY if way is self.way else 1) for way, rate in self._rates.items()}
        best = max(weighed, key=weighed.__getitem__)
        patience = _SECOND_LOOK_ROUNDS * session_count
        for way, rate in self._rates.items():
            if self._rounds_without[way] > patience and rate > _NEAR * weighed[best]:
                best = way
                break
        if best is not self.way:
            self._stay = _STAY_ROUNDS * (session_count - 1)
            self._settling = 2 * (session_count - 1)
        return best
