"""Which draft tokens of which sessions are worth a verifier's time. Pure.

A verifier takes all sessions' rounds into one step, and a step takes longer the more tokens it has.
So a draft token must earn its place among all of them: sorted by the odds that they survive, the
tokens are kept as long as expected tokens a second rise, by the time of whole rounds, what they
waited for the draft included. With coupled sampling this may look at live confidences: what is
accepted never depends on what is proposed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from orchestrator.speculation.costs import Average, VerifyCosts
from orchestrator.speculation.plan import Regime

_FRESH_SECONDS, _FRESH_SECONDS_AN_ODD = 0.01, 5e-6
"""How long a threshold holds: about a step, or longer over thousands of odds, each of which takes
0.2 us to weigh."""

_PLAIN = Regime(None)


class VerifyBudget:
    """Keeps the latest survival odds of each session whose turn runs, and one threshold over
    them."""

    def __init__(self, costs: VerifyCosts, clock: Callable[[], float] = time.monotonic) -> None:
        self._costs = costs
        self._clock = clock
        self._survivals: dict[object, Sequence[float]] = {}
        self._waited = Average()
        self._threshold = 0.0
        self._fresh_until = float("-inf")

    @property
    def session_count(self) -> int:
        """Whose turns run just now."""
        return len(self._survivals)

    def join(self, session: object) -> None:
        """A session's turn has begun: it counts, though it has proposed nothing yet."""
        self._survivals.setdefault(session, ())

    def leave(self, session: object) -> None:
        """A session's turn has ended."""
        self._survivals.pop(session, None)

    def allowed(self, session: object, survivals: Sequence[float], waited: float = 0.0, regime: Regime = _PLAIN) -> int:
        """How many of a session's draft tokens, with these odds to survive, to verify in its next
        round, which has ``waited`` for them and is run in a ``regime``."""
        self._survivals[session] = survivals
        self._waited.observe(waited)
        if len(self._survivals) == 1 or not survivals:  # alone, a session's own plan has weighed it all
            return len(survivals)
        now = self._clock()
        if now > self._fresh_until:
            odd_count = sum(map(len, self._survivals.values()))
            self._fresh_until = now + max(_FRESH_SECONDS, _FRESH_SECONDS_AN_ODD * odd_count)
            self._threshold = self._compute(regime)
        return sum(survival >= self._threshold for survival in survivals)

    def _compute(self, regime: Regime) -> float:
        """The lowest odds worth a place, by the step-time curve."""
        odds = np.sort(np.concatenate([np.asarray(survivals, dtype=float) for survivals in self._survivals.values()]))
        odds = odds[::-1]
        count = len(self._survivals)
        expected = count + np.concatenate(([0.0], np.cumsum(odds)))
        steps = self._costs.curve(regime).table(count + np.arange(len(expected)))
        times = self._waited.value + steps + self._costs.around.at(regime)
        rates = expected / np.maximum(1e-9, times)
        kept = len(odds) - int(rates[::-1].argmax())  # of equal rates the most
        return float(odds[kept - 1]) if kept else 1.0 + 1e-9
