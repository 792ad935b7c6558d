"""Tokens a second that each way to run rounds should bring, from what has been measured: acceptance
by position, verification by the tokens in it, a draft's step, and what surrounds the two (network,
queues). Pure.

With S_i the odds that the first i draft tokens survive, V(n) a verification of n tokens, D(k) a
proposal of k, and h the odds that the draft has prepared for what verification answered::

    plain          1                 / V(1)
    synchronous    (1 + S_1 .. S_k)  / (V(1 + k) + D(k))
    enumerated     (1 + h (S_1 .. S_k) + (1 - h) (S_1 .. S_r)) / (max(V(1 + k), D(1 + k)) + (1 - h) D(r))
                                                                   r: the best k of a synchronous round
    run ahead      (1 + u S_m (S_1 .. S_(k-m)))  / V(1 + k - m)    m: tokens that go by until a proposal is there
                                                                   u: proposals a verification

Where a turn ends the draft does too, so of a long proposal the last tokens are seldom there:
tokens, steps and rows are those that `ending` leaves of it.

A turn's first round has nothing prepared: where the draft enumerates it waits as a synchronous one
or brings one token, as `beginnings` would have it, and where it runs ahead there are m plain ones;
which matters the more the fewer tokens a turn generates.

Maximising over k is the ratio rule: a token more is drafted while its odds by its seconds beat the
average.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from orchestrator.speculation.costs import LONGEST_WEIGHED
from orchestrator.speculation.ending import ending_of
from orchestrator.speculation.knowledge import PairKnowledge, VerifierKnowledge
from orchestrator.speculation.plan import Overlap, RoundPlan

_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, LONGEST_WEIGHED)
"""Draft lengths that are weighed: close together where a token more or less matters."""

_BRANCH_COUNTS = (2, 4, 8, 16)

FIXED_BRANCHES = 8
"""Where their number is not weighed."""


class Forecasts:
    """Of the next round of one session, which lives on one verifier. Of equal rates the shorter
    draft and the fewer branches win.

    Plain loops over a few numbers: NumPy's calls took twice as long, and this is done every few
    rounds of every session.
    """

    def __init__(self, pair: PairKnowledge, home: VerifierKnowledge, survivals: Sequence[float]) -> None:
        """``survivals``: the odds that the first 1, 2 .. tokens survive, as many as a draft may
        have."""
        self._pair = pair
        self._home = home
        self._survivals = survivals
        self._ending = ending_of(pair.turn_length.value)
        self._sums = self._ending.tokens(survivals)
        """Of expected tokens of a round, by the draft's length."""
        self._lengths = _LENGTHS[: bisect_right(_LENGTHS, len(survivals))]
        self._step = pair.drafting.alone.at(pair.session_count)
        """Seconds of a draft's step, of all sessions' rows."""
        self._recovery = RoundPlan(0)

    def best(self, way: Overlap) -> RoundPlan:
        """The best plan of one way; its rate is not corrected."""
        if way is Overlap.RUN_AHEAD:
            return self._run_ahead()
        if self._recovery.rate is None:
            self._recovery = self._synchronous()
        return self._recovery if way is Overlap.NONE else self._enumerated(self._recovery)

    def _verify(self, way: Overlap) -> list[float]:
        """Seconds of a verification of 0, 1, 2 .. tokens, with what surrounds it."""
        return self._ending.verified(self._home.costs.rounds(self._home.regime(way)))

    def _branch_step(self, branch_count: int) -> float:
        """Seconds of a draft's step with so many branches of each session."""
        return self._pair.drafting.beside.at(branch_count * self._pair.session_count)

    def _around(self, way: Overlap) -> float:
        """Seconds that surround a draft's steps."""
        return self._pair.drafting.around.at(self._pair.regime(way))

    def _synchronous(self) -> RoundPlan:
        verify, around, sums, drafted = (
            self._verify(Overlap.NONE),
            self._around(Overlap.NONE),
            self._sums,
            self._ending.drafted,
        )
        best, highest = 0, -math.inf
        for length in self._lengths:
            rate = sums[length] / (verify[1 + length] + around + drafted(length) * self._step)
            if rate > highest:
                best, highest = length, rate
        return RoundPlan(best, Overlap.NONE, rate=highest)

    def _enumerated(self, recovery: RoundPlan) -> RoundPlan:
        verify, around, sums = self._verify(Overlap.ENUMERATE), self._around(Overlap.ENUMERATE), self._sums
        missed = sums[recovery.draft_length]
        waited = around + self._ending.drafted(recovery.draft_length) * self._step
        rounds = [
            (length, sums[length], verify[1 + length], 1 + self._ending.drafted(length)) for length in self._lengths
        ]
        best, highest, branches, seconds = 0, -math.inf, 0, 0.0
        for branch_count in _BRANCH_COUNTS:
            hits, step = self._pair.hits.at(branch_count), self._branch_step(branch_count)
            misses = 1 - hits
            for length, brought, verified, steps in rounds:
                drafting = around + steps * step
                overlapped = verified if verified > drafting else drafting
                rate = (hits * brought + misses * missed) / (overlapped + misses * waited)
                if rate > highest:
                    best, highest, branches, seconds = length, rate, branch_count, overlapped
        assert recovery.rate is not None, "a round that waits has a forecast"
        hits = self._pair.hits.at(branches)
        second = hits * sums[best] + (1 - hits) * missed - highest * ((1 - hits) * waited + verify[1 + best])
        at_once = max(verify[1], around + (1 + self._ending.drafted(best)) * self._branch_step(branches))
        # What `beginnings` weighs, the prompt left out.
        waiting = missed - highest * (waited + verify[1 + recovery.draft_length])
        first_tokens, first_rate = missed, recovery.rate
        if 1 - highest * at_once + self._ending.going_on * second >= waiting:
            first_tokens, first_rate = 1.0, 1 / at_once
        rate = self._begun(highest, first_tokens, first_rate)
        hit, miss = sums[best] / seconds, missed / (seconds + waited)
        return RoundPlan(
            best, Overlap.ENUMERATE, branches, rate, recovery.draft_length, hit, miss, first_rate=first_rate
        )

    def _run_ahead(self) -> RoundPlan:
        """A proposal arrives after a delay; by then a token has gone by for each round."""
        verify, around, step = (
            self._verify(Overlap.RUN_AHEAD),
            self._around(Overlap.RUN_AHEAD),
            self._branch_step(FIXED_BRANCHES),
        )
        plain = verify[1]
        best, highest, first = 0, -math.inf, 0
        for length in self._lengths:
            busy = (self._ending.drafted(length) + 1) * step
            gone = math.ceil((around + busy) / plain)
            if gone >= length:
                continue
            used = min(1.0, plain / max(1e-6, busy))
            arrived = self._survivals[gone - 1] if gone else 1.0
            rate = (1 + used * arrived * (self._sums[length - gone] - 1)) / verify[1 + length - gone]
            if rate > highest:
                best, highest, first = length, rate, gone
        if not best:
            return RoundPlan(self._lengths[0], Overlap.RUN_AHEAD, FIXED_BRANCHES, 0.0)
        return RoundPlan(best, Overlap.RUN_AHEAD, FIXED_BRANCHES, self._begun(highest, first, 1 / plain))

    def _begun(self, rate: float, first_tokens: float, first_rate: float) -> float:
        """The rate of a whole turn whose first tokens come at another one: the first round of a
        turn finds nothing prepared."""
        tokens = self._pair.turn_length.value
        share = min(1.0, first_tokens / tokens) if tokens else 0.0
        return 1 / (share / first_rate + (1 - share) / rate)
