"""How many sessions share something. Pure."""

from __future__ import annotations

from orchestrator.speculation.plan import Overlap, Regime, load_of

_RECENT_ROUNDS, _FEW = 2, 4
"""How many rounds of every session count as recent, as if there were no fewer sessions than a
few."""

_MASS_ARRIVAL = 1.5
"""So many times as many sessions as of late have not come one by one."""


class Loaded:
    """What sessions share, with how many of them run turns on it."""

    def __init__(self) -> None:
        self.session_count = 1
        """Whose turns run just now."""
        self._mean_count = self._recent_count = 1.0
        self.load = load_of(1)
        """`load_of` the sessions now, or until of late: with short answers some have always just
        ended."""
        self._regimes = _regimes(self.load)

    @property
    def is_settled(self) -> bool:
        """False while far more turns run than of late, all having just begun: what rounds then take
        says little of those to come."""
        return self.session_count <= _MASS_ARRIVAL * self._mean_count

    def begin_round(self, session_count: int) -> None:
        """One of so many sessions begins a round."""
        self.session_count = session_count
        weight = 1 / (_RECENT_ROUNDS * max(_FEW, session_count))
        self._mean_count += weight * (session_count - self._mean_count)
        self._recent_count = max(session_count, self._recent_count + weight * (session_count - self._recent_count))
        load = load_of(round(self._recent_count))
        if load != self.load:
            self.load, self._regimes = load, _regimes(load)

    def regime(self, way: Overlap | None) -> Regime:
        """Of rounds run in a way with about as many sessions as now."""
        return self._regimes[way]


def _regimes(load: int) -> dict[Overlap | None, Regime]:
    return {way: Regime(way, load) for way in (None, *Overlap)}
