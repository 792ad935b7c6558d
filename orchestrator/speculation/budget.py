"""Which draft tokens of which sessions are worth a verifier's time. Pure.

A verifier takes all sessions' rounds into one step, and a step takes longer the more tokens it has. So a draft token
must earn its place among all of them: sorted by the odds that they survive, the tokens are kept as long as expected
tokens a second rise. With coupled sampling this may look at live confidences: what is accepted never depends on what is
proposed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from orchestrator.speculation.costs import VerifyCosts

_FRESH_SECONDS = 0.01
"""How long a threshold holds: about a step."""


class VerifyBudget:
    """Keeps the latest survival odds of each session whose turn runs, and one threshold over them."""

    def __init__(self, costs: VerifyCosts, clock: Callable[[], float] = time.monotonic) -> None:
        self._costs = costs
        self._clock = clock
        self._survivals: dict[object, Sequence[float]] = {}
        self._threshold = 0.0
        self._computed = float("-inf")

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

    def allowed(self, session: object, survivals: Sequence[float]) -> int:
        """How many of a session's draft tokens, with these odds to survive, to verify in its next round."""
        self._survivals[session] = survivals
        if len(self._survivals) == 1:  # alone, a session's own plan has weighed it all
            return len(survivals)
        now = self._clock()
        if now - self._computed > _FRESH_SECONDS:
            self._computed = now
            self._threshold = self._compute()
        return sum(survival >= self._threshold for survival in survivals)

    def _compute(self) -> float:
        """The lowest odds worth a place, by the step-time curve."""
        odds = np.sort(np.concatenate([np.asarray(survivals, dtype=float) for survivals in self._survivals.values()]))
        odds = odds[::-1]
        count = len(self._survivals)
        expected = count + np.concatenate(([0.0], np.cumsum(odds)))
        curve = self._costs.beside if self._costs.beside.known else self._costs.alone
        times = curve.table(count + np.arange(len(expected))) + self._costs.around.at()
        rates = expected / np.maximum(1e-9, times)
        kept = len(odds) - int(rates[::-1].argmax())  # of equal rates the most
        return float(odds[kept - 1]) if kept else 1.0 + 1e-9
