"""How the next round is run: how many draft tokens, and whether the draft works while the target verifies. Pure.

Each way to run a round has a forecast in tokens a second, from what has been measured: acceptance by position, verification by
the tokens in it, a draft's step, and what surrounds the two (network, queues). The best forecast wins. With S_i the odds that
the first i draft tokens survive, V(n) a verification of n tokens, D(k) a proposal of k, and h the odds that the draft has
prepared for what verification answered::

    plain          1                 / V(1)
    synchronous    (1 + S_1 .. S_k)  / (V(1 + k) + D(k))
    enumerated     (1 + h (S_1 .. S_k) + (1 - h) (S_1 .. S_r)) / (max(V(1 + k), D(1 + k)) + (1 - h) D(r))
                                                                   r: the best k of a synchronous round
    run ahead      (1 + u S_m (S_1 .. S_(k-m)))  / V(1 + k - m)    m: tokens that go by until a proposal is there
                                                                   u: proposals a verification

Maximising over k is the ratio rule: a token more is drafted while its odds by its seconds beat the average. What rounds
really bring corrects the forecasts of their kind.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum

from orchestrator.speculation.acceptance import AcceptanceEstimate, Calibration
from orchestrator.speculation.costs import LONGEST_WEIGHED, DraftCosts, HitRates, VerifyCosts
from orchestrator.speculation.sharpening import Sharpening


class Overlap(Enum):
    """What the draft does while the target verifies."""

    NONE = "none"
    """Nothing: a round asks for a proposal and waits for it."""
    ENUMERATE = "enumerate"
    """It prepares for what verification may answer; for an answer it did not prepare for, a round waits."""
    RUN_AHEAD = "run_ahead"
    """It is rounds ahead, and no round waits for it."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """``draft_length`` 0 is plain decoding: the draft is not asked. ``rate`` is the forecast in tokens a second, if
    there is one."""

    draft_length: int
    overlap: Overlap = Overlap.NONE
    branch_count: int = 0
    rate: float | None = None
    recovery_length: int = 0
    """Draft tokens to wait for where nothing that was prepared came true."""
    switches_off: bool = False
    """Whether this is the first plain round because speculation would cost."""

    @property
    def way(self) -> Overlap | None:
        """None is plain decoding."""
        return self.overlap if self.draft_length else None


PLAIN = RoundPlan(0)

_GUESSED_LENGTH = 6
"""Draft tokens to ask for while nothing is known."""

_NGRAM_GUESSES = (0.4, 0.5, 0.6, 0.75, 0.9)
"""The longer the agreement, the better."""

_BRANCH_COUNTS = (2, 4, 8, 16)
_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, LONGEST_WEIGHED)
"""Draft lengths that are weighed: close together where a token more or less matters."""

_FIXED_BRANCHES = 8
"""Where their number is not weighed."""

_LOYALTY = 1.03
"""Another way must be better by this factor: forecasts are noisy, and a change costs a round."""

_WORTH_IT, _WORTH_A_RETURN = 1.01, 1.04
"""How much better than plain decoding speculation must be, while it is on and once it is off."""

_LESSONS = 12
"""Proposals after which a pair may be judged."""

_FIRST_PROBE, _LAST_PROBE = 48, 1536
"""Tokens from one probe to the next of a session that is better off without: each time twice as many."""

_FAITH = 2.0
"""Tokens a round that a forecast is taken to be right about at first."""

_CORRECTION_WEIGHT = 0.03

_PROBE_ROUNDS = 2
"""The first of them asks, the second uses what came."""

_SECOND_LOOK_ROUNDS = 200
"""Rounds after which a way that has not been taken gets another try, if its forecast was not far off."""


class Correction:
    """By how much the forecasts of one way to run rounds are off."""

    def __init__(self) -> None:
        self._brought = self._forecast = _FAITH

    def observe(self, forecast_tokens: float, tokens: int) -> None:
        """A round was expected to bring ``forecast_tokens`` in the time it took."""
        self._brought += _CORRECTION_WEIGHT * (tokens - self._brought)
        # What one hiccup of the machine cost is not the forecast's fault.
        self._forecast += _CORRECTION_WEIGHT * (min(forecast_tokens, 4.0 * tokens) - self._forecast)

    @property
    def factor(self) -> float:
        """To multiply forecasts by."""
        return min(1.5, max(0.3, self._brought / self._forecast))


class PairKnowledge:
    """What all sessions of a pair learn together."""

    def __init__(self) -> None:
        self.verify = VerifyCosts()
        self.drafting = DraftCosts()
        self.session_count = 1
        """Whose turns run just now: all draft alike, and a draft takes their rows into one step."""
        self.acceptance = AcceptanceEstimate(0.7, window=2000)
        self.ngram_acceptance = [AcceptanceEstimate(guess, window=2000) for guess in _NGRAM_GUESSES]
        """Of n-gram proposals, by how long the past agrees with the present."""
        self.calibration = Calibration()
        self.hits = HitRates()
        self.sharpening = Sharpening()
        self.corrections: defaultdict[Overlap | None, Correction] = defaultdict(Correction)
        """For plain decoding (None) too."""


class Planner:
    """Plans the rounds of one session."""

    def __init__(self, pair: PairKnowledge) -> None:
        self.acceptance = AcceptanceEstimate(pair.acceptance)
        self._pair = pair
        self._last = PLAIN
        self._off = False
        self._off_tokens = 0
        self._next_probe = _FIRST_PROBE
        self._probing = 0
        self._rounds_without: dict[Overlap, int] = dict.fromkeys(Overlap, 0)

    def plan(self, longest: int, overlap: Overlap | None = None) -> RoundPlan:
        """The next round's, of at most ``longest`` draft tokens. ``overlap`` leaves only one way to draft."""
        if longest <= 0:
            return PLAIN
        if not self._pair.drafting.known:  # ask without waiting, to learn what it takes
            way = overlap or Overlap.ENUMERATE
            return self.fixed(min(_GUESSED_LENGTH, longest), way)
        ways = [overlap] if overlap else list(Overlap)
        forecasts = {way: self._best(way, longest) for way in ways}
        plan = self._choose(forecasts, self.plain_rate * self._pair.corrections[None].factor)
        self._note(plan)
        return plan

    def observe(self, plan: RoundPlan, tokens: int, seconds: float) -> None:
        """A planned round brought ``tokens`` and took ``seconds``."""
        if plan.rate is not None:
            self._pair.corrections[plan.way].observe(plan.rate * seconds, tokens)

    def fixed(self, draft_length: int, overlap: Overlap) -> RoundPlan:
        """A plan that leaves nothing open."""
        branches = 0 if overlap is Overlap.NONE else _FIXED_BRANCHES
        return RoundPlan(draft_length, overlap, branches) if draft_length > 0 else PLAIN

    @property
    def plain_rate(self) -> float:
        """Tokens a second without speculation, uncorrected."""
        return 1 / self._pair.verify.rounds(beside=False)[1]

    def _best(self, way: Overlap, longest: int) -> tuple[float, RoundPlan]:
        rate, length, branches, recovery = self._forecast(way, longest)
        plan = RoundPlan(length, way, branches, rate, recovery)
        return rate * self._pair.corrections[way].factor, plan

    def _forecast(self, way: Overlap, longest: int) -> tuple[float, int, int, int]:
        """The best (tokens a second, draft length, branches, recovery length) of one way."""
        survivals = self.acceptance.survivals(longest)
        sums = list(itertools.accumulate(survivals, initial=1.0))
        lengths = [length for length in _LENGTHS if length <= longest]
        if way is Overlap.RUN_AHEAD:
            rate, length = self._run_ahead(lengths, survivals, sums)
            return rate, length, _FIXED_BRANCHES, 0
        rate, recovery = self._synchronous(lengths, sums)
        if way is Overlap.NONE:
            return rate, recovery, 0, 0
        rate, negative, fewer = max(
            (*self._enumerated(lengths, branches, recovery, sums), -branches) for branches in _BRANCH_COUNTS
        )
        return rate, -negative, -fewer, recovery

    def _synchronous(self, lengths: list[int], sums: list[float]) -> tuple[float, int]:
        """The best rate and its draft length."""
        drafting = self._pair.drafting
        verify, around = self._pair.verify.rounds(beside=False), drafting.around.value
        step = drafting.busy(1, self._pair.session_count)
        rate, negative = max((sums[k] / (verify[1 + k] + around + k * step), -k) for k in lengths)
        return rate, -negative

    def _enumerated(self, lengths: list[int], branches: int, recovery: int, sums: list[float]) -> tuple[float, int]:
        """The best rate with so many branches, and its draft length, negative."""
        drafting, hits = self._pair.drafting, self._pair.hits.at(branches)
        verify, around = self._pair.verify.rounds(beside=True), drafting.around.value
        step = drafting.busy(1, branches * self._pair.session_count)
        missed = (1 - hits) * drafting.at(recovery, self._pair.session_count)
        recovered = (1 - hits) * sums[recovery]
        return max(
            (
                (hits * sums[k] + recovered) / (max(verify[1 + k], around + (1 + k) * step) + missed),
                -k,
            )
            for k in lengths
        )

    def _run_ahead(self, lengths: list[int], survivals: list[float], sums: list[float]) -> tuple[float, int]:
        """The best rate and its draft length. A proposal arrives after a delay; by then a token has gone by for each round."""
        drafting = self._pair.drafting
        verify, around = self._pair.verify.rounds(beside=True), drafting.around.value
        step = drafting.busy(1, _FIXED_BRANCHES * self._pair.session_count)
        best = (0.0, -lengths[0])
        for length in lengths:
            busy = (length + 1) * step
            gone = math.ceil((around + busy) / verify[1])
            if gone < length:
                rest = length - gone
                used = min(1.0, verify[1] / max(1e-6, busy))
                best = max(best, ((1 + used * survivals[gone - 1] * (sums[rest] - 1)) / verify[1 + rest], -length))
        return best[0], -best[1]

    def _choose(self, forecasts: dict[Overlap, tuple[float, RoundPlan]], plain_rate: float) -> RoundPlan:
        rates = {way: rate * (_LOYALTY if way is self._last.way else 1) for way, (rate, _) in forecasts.items()}
        best = max(rates, key=rates.__getitem__)
        if self._probing:
            self._probing -= 1
            return forecasts[best][1]
        known = self._pair.acceptance.count >= _LESSONS  # before that a guess would decide
        if known and forecasts[best][0] <= plain_rate * (_WORTH_A_RETURN if self._off else _WORTH_IT):
            return self._plain(forecasts[best][1])
        self._off, self._next_probe = False, _FIRST_PROBE
        for way, (rate, plan) in forecasts.items():
            if self._rounds_without[way] > _SECOND_LOOK_ROUNDS and rate > 0.7 * rates[best] and rate > plain_rate:
                return plan
        return forecasts[best][1]

    def _plain(self, probe: RoundPlan) -> RoundPlan:
        """Plain decoding, but for a probe now and then."""
        switches_off, self._off = not self._off, True
        self._off_tokens = 1 if switches_off else self._off_tokens + 1
        if self._off_tokens < self._next_probe:
            return RoundPlan(0, rate=self.plain_rate, switches_off=switches_off)
        self._off_tokens = 0
        self._next_probe = min(2 * self._next_probe, _LAST_PROBE)
        self._probing = _PROBE_ROUNDS - 1
        return probe

    def _note(self, plan: RoundPlan) -> None:
        for way in self._rounds_without:
            self._rounds_without[way] += 1
        if plan.draft_length:
            self._last = plan
            self._rounds_without[plan.overlap] = 0
