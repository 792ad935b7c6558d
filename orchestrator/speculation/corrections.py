"""By how much the forecasts of each way to run rounds are off, with about as many sessions. Pure.

Where many share a draft and a verifier, they wait for one another in ways that a forecast does not
see.
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

_WINDOW_SECONDS = 0.5
"""And no sooner than after so long: other work that comes over a machine for a tenth of a second is
dozens of a small pair's rounds, and it slows every way that is taken."""

_BOUNDS, _PLAIN_BOUNDS, _PLAIN_ALONE_BOUNDS = (0.3, 1.5), (0.9, 1.1), (0.8, 1.1)
"""Of what is believed. Plain decoding's forecast is its own measured round, the orchestrator's part
left out, which is up to a fifth of it where verifications are short: where its rounds show more
than that, they ran beside others that draft. They may have wherever there is more than one
session."""

_COMMON = 0.7
"""How far below its forecast one way to draft may fall for reasons that are likely the others' too,
like answers that end in mid-proposal."""

_FRESH, _MEMORY = 8, 400
"""Rounds of every session for which what a way showed holds, and after which it has mostly faded:
loads, drafts and machines change, so a way that was worse than forecast gets another try."""


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
        self._drafting: _Correction | None = None
        self._rounds = 0.0

    def begin_round(self, session_count: int) -> None:
        """One of so many sessions is about to choose a way: rounds that leave no choice make
        nothing older."""
        self._rounds += 1 / session_count

    def factor(self, regime: Regime) -> float:
        """To multiply forecasts by."""
        known = self._each.get(regime) or self._nearest(regime.way)
        if regime.way is not None:
            least, most = _BOUNDS
        else:
            least, most = _PLAIN_BOUNDS if regime.load else _PLAIN_ALONE_BOUNDS
        factor = min(most, max(least, known.brought / known.forecast))
        return 1 + (factor - 1) * self._fresh(known)

    def observe(
        self, regime: Regime, session_count: int, rate: float, seconds: float, tokens: float, weight: float = 1.0
    ) -> None:
        """A round was good for ``tokens`` and took ``seconds``, where a ``rate`` of tokens a second
        was forecast. It weighs as ``weight`` others."""
        known = self._each.get(regime)
        if known is None:
            known = self._each[regime] = self._nearest(regime.way)
        else:
            known.brought = known.forecast + (known.brought - known.forecast) * self._fresh(known)
        known.rounds += 1
        window = max(_WINDOW + _WINDOW_EACH * session_count, _WINDOW_SECONDS * session_count * rate / tokens)
        weight *= 1 / min(_FIRST_ROUNDS + session_count + known.rounds, window)
        known.brought += weight * (tokens - known.brought)
        # What one hiccup of the machine cost is not the forecast's fault.
        known.forecast += weight * (min(rate * seconds, 4.0 * tokens) - known.forecast)
        known.latest = self._rounds
        self._latest[regime.way] = known
        if regime.way is not None:
            self._drafting = known

    def _nearest(self, way: Overlap | None) -> _Correction:
        """To begin with where nothing is known: what the way has shown with other loads, or another
        way to draft."""
        if way in self._latest:
            return replace(self._latest[way], rounds=0)
        other = self._drafting
        if way is None or other is None:
            return _Correction()
        brought = min(max(other.brought, _COMMON * other.forecast), other.forecast)
        return replace(other, brought=brought, rounds=0)

    def _fresh(self, known: _Correction) -> float:
        return math.exp(min(0.0, known.latest + _FRESH - self._rounds) / _MEMORY)
