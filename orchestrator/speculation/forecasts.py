"""Tokens a second that each way to run rounds should bring, from what has been measured: acceptance by position, verification
by the tokens in it, a draft's step, and what surrounds the two (network, queues). Pure.

With S_i the odds that the first i draft tokens survive, V(n) a verification of n tokens, D(k) a proposal of k, and h the odds
that the draft has prepared for what verification answered::

    plain          1                 / V(1)
    synchronous    (1 + S_1 .. S_k)  / (V(1 + k) + D(k))
    enumerated     (1 + h (S_1 .. S_k) + (1 - h) (S_1 .. S_r)) / (max(V(1 + k), D(1 + k)) + (1 - h) D(r))
                                                                   r: the best k of a synchronous round
    run ahead      (1 + u S_m (S_1 .. S_(k-m)))  / V(1 + k - m)    m: tokens that go by until a proposal is there
                                                                   u: proposals a verification

Where a turn ends the draft does too, so of a long proposal the last tokens are seldom there: tokens, steps and rows are those
that `ending` leaves of it.

A turn's first round has nothing prepared: it is a synchronous one where the draft enumerates, and m plain ones where it runs
ahead, which matters the more the fewer tokens a turn generates.

Maximising over k is the ratio rule: a token more is drafted while its odds by its seconds beat the average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orchestrator.speculation.costs import LONGEST_WEIGHED
from orchestrator.speculation.ending import Ending
from orchestrator.speculation.knowledge import PairKnowledge, VerifierKnowledge
from orchestrator.speculation.plan import Overlap, RoundPlan

Floats = NDArray[np.float64]

_LENGTHS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, LONGEST_WEIGHED])
"""Draft lengths that are weighed: close together where a token more or less matters."""

_BRANCH_COUNTS = np.array([2, 4, 8, 16])

FIXED_BRANCHES = 8
"""Where their number is not weighed."""

_BRANCH_ROWS = np.array([*_BRANCH_COUNTS, FIXED_BRANCHES])


class Forecasts:
    """Of the next round of one session, which lives on one verifier. Of equal rates the shorter draft and the fewer branches
    win."""

    def __init__(self, pair: PairKnowledge, home: VerifierKnowledge, survivals: list[float]) -> None:
        """``survivals``: the odds that the first 1, 2 .. tokens survive, as many as a draft may have."""
        self._pair = pair
        self._home = home
        self._survivals = np.array(survivals)
        self._ending = Ending(pair.turn_length.value)
        self._sums = self._ending.tokens(self._survivals)
        """Of expected tokens of a round, by the draft's length."""
        self._lengths = _LENGTHS[: int(np.searchsorted(_LENGTHS, len(survivals), side="right"))]
        self._step = pair.drafting.alone.at(pair.session_count)
        steps = pair.drafting.beside.table(_BRANCH_ROWS * pair.session_count)
        self._branch_steps, self._fixed_step = steps[:-1, np.newaxis], steps[-1]
        """Seconds of a draft's step: of all sessions' rows, with one branch each or more."""
        self._recovery = RoundPlan(0)

    def best(self, way: Overlap) -> RoundPlan:
        """The best plan of one way; its rate is not corrected."""
        if way is Overlap.RUN_AHEAD:
            return self._run_ahead()
        if self._recovery.rate is None:
            self._recovery = self._synchronous()
        return self._recovery if way is Overlap.NONE else self._enumerated(self._recovery.draft_length)

    def _verify(self, way: Overlap) -> Floats:
        """Seconds of a verification of 0, 1, 2 .. tokens, with what surrounds it."""
        return self._ending.verified(self._home.costs.rounds(self._home.regime(way)))

    def _drafted(self, lengths: NDArray[np.integer]) -> Floats:
        """Steps of proposals of these lengths."""
        return self._ending.drafted_of(lengths)

    def _around(self, way: Overlap) -> float:
        """Seconds that surround a draft's steps."""
        return self._pair.drafting.around.at(self._pair.regime(way))

    def _synchronous(self) -> RoundPlan:
        lengths, verify = self._lengths, self._verify(Overlap.NONE)
        draft = self._around(Overlap.NONE) + self._drafted(lengths) * self._step
        rates = self._sums[lengths] / (verify[1 + lengths] + draft)
        best = int(rates.argmax())
        return RoundPlan(int(lengths[best]), Overlap.NONE, rate=float(rates[best]))

    def _enumerated(self, recovery: int) -> RoundPlan:
        lengths, verify, around = self._lengths, self._verify(Overlap.ENUMERATE), self._around(Overlap.ENUMERATE)
        hits = np.array([[self._pair.hits.at(count)] for count in _BRANCH_COUNTS.tolist()])
        expected = hits * self._sums[lengths] + (1 - hits) * self._sums[recovery]
        overlapped = np.maximum(verify[1 + lengths], around + (1 + self._drafted(lengths)) * self._branch_steps)
        waited = around + self._ending.drafted(recovery) * self._step
        rates = expected / (overlapped + (1 - hits) * waited)
        branches, best = divmod(int(rates.argmax()), len(lengths))
        branch_count = int(_BRANCH_COUNTS[branches])
        rate = self._begun(float(rates.max()), self._sums[recovery], self._recovery.rate or 1e-6)
        seconds, length = float(overlapped[branches, best]), int(lengths[best])
        hit, miss = float(self._sums[length] / seconds), float(self._sums[recovery] / (seconds + waited))
        return RoundPlan(length, Overlap.ENUMERATE, branch_count, rate, recovery, hit, miss, self._recovery.rate)

    def _run_ahead(self) -> RoundPlan:
        """A proposal arrives after a delay; by then a token has gone by for each round."""
        verify = self._verify(Overlap.RUN_AHEAD)
        busy = (self._drafted(self._lengths) + 1) * self._fixed_step
        gone = np.ceil((self._around(Overlap.RUN_AHEAD) + busy) / verify[1]).astype(int)
        in_time = gone < self._lengths
        if not in_time.any():
            return RoundPlan(int(self._lengths[0]), Overlap.RUN_AHEAD, FIXED_BRANCHES, 0.0)
        lengths, gone, busy = self._lengths[in_time], gone[in_time], busy[in_time]
        rest = lengths - gone
        used = np.minimum(1.0, verify[1] / np.maximum(1e-6, busy))
        arrived = np.where(gone > 0, self._survivals[gone - 1], 1.0)
        rates = (1 + used * arrived * (self._sums[rest] - 1)) / verify[1 + rest]
        best = int(rates.argmax())
        rate = self._begun(float(rates[best]), float(gone[best]), 1 / verify[1])
        return RoundPlan(int(lengths[best]), Overlap.RUN_AHEAD, FIXED_BRANCHES, rate)

    def _begun(self, rate: float, first_tokens: float, first_rate: float) -> float:
        """The rate of a whole turn whose first tokens come at another one: the first round of a turn finds nothing prepared."""
        tokens = self._pair.turn_length.value
        share = min(1.0, first_tokens / tokens) if tokens else 0.0
        return float(1 / (share / first_rate + (1 - share) / rate))
