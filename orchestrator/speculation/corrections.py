"""By how much the forecasts of each way to run rounds are off, with about as many sessions. Pure.

Where many share a draft and a verifier, they wait for one another in ways that a forecast does not see.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from orchestrator.speculation.plan import Overlap, Regime

_FAITH = 2.0
"""Tokens a round that a forecast is taken to be right about at first."""

_FIRST_ROUNDS = 8
"""Rounds that this faith is worth, and one more for every session."""

_WINDOW, _WINDOW_EACH = 24, 8
"""Rounds, and more for every session, after which what one showed has lost most of its weight."""

_FRESH, _MEMORY = 8, 400
"""Rounds of every session for which what a way showed holds, and after which it has mostly faded: loads, drafts and machines
change, so a way that was worse than forecast gets another try."""


@dataclass(slots=True)
class _Correction:
    """``latest``: rounds of every session until it was observed last."""

    brought: float = _FAITH
    forecast: float = _FAITH
    rounds: int = 0
    latest: float = 0.0


class Corrections:
    """Belongs to a pair."""

    def __init__(self) -> None:
        self._each: dict[Regime, _Correction] = {}
        self._latest: dict[Overlap | None, _Correction] = {}
        self._rounds = 0.0

    def begin_round(self, session_count: int) -> None:
        """One of so many sessions is about to choose a way: rounds that leave no choice make nothing older."""
        self._rounds += 1 / session_count

    def factor(self, regime: Regime) -> float:
        """To multiply forecasts by."""
        known = self._each.get(regime) or self._latest.get(regime.way)
        if known is None:
            return 1.0
        factor = min(1.5, max(0.3, known.brought / known.forecast))
        return 1 + (factor - 1) * self._fresh(known)

    def observe(self, regime: Regime, session_count: int, forecast_tokens: float, tokens: int) -> None:
        """A round brought ``tokens``, and ``forecast_tokens`` were expected in the time it took."""
        known = self._each.get(regime)
        if known is None:
            like = self._latest.get(regime.way)
            known = self._each[regime] = replace(like, rounds=0) if like else _Correction()
        else:
            known.brought = known.forecast + (known.brought - known.forecast) * self._fresh(known)
        known.rounds += 1
        weight = max(1 / (_FIRST_ROUNDS + session_count + known.rounds), 1 / (_WINDOW + _WINDOW_EACH * session_count))
        known.brought += weight * (tokens - known.brought)
        # What one hiccup of the machine cost is not the forecast's fault.
        known.forecast += weight * (min(forecast_tokens, 4.0 * tokens) - known.forecast)
        known.latest = self._rounds
        self._latest[regime.way] = known

    def _fresh(self, known: _Correction) -> float:
        return math.exp(min(0.0, known.latest + _FRESH - self._rounds) / _MEMORY)
