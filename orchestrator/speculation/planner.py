"""How the next round is run: how many draft tokens, and whether the draft works while the target verifies. Pure.

The way with the best forecast wins (`forecasts`, `common`). What rounds really bring corrects the forecasts of their kind.
Where it does not beat plain decoding the draft is left alone, and probed now and then.
"""

from __future__ import annotations

from orchestrator.speculation.acceptance import AcceptanceEstimate
from orchestrator.speculation.forecasts import FIXED_BRANCHES, Forecasts
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.plan import PLAIN, Overlap, RoundPlan

_GUESSED_LENGTH = 6
"""Draft tokens to ask for while nothing is known."""

_WORTH_IT, _WORTH_A_RETURN = 1.01, 1.04
"""How much better than plain decoding speculation must be, while it is on and once it is off."""

_LESSONS = 12
"""Proposals after which a pair may be judged."""

_FIRST_PROBE, _LAST_PROBE = 48, 1536
"""Tokens from one probe to the next of a session that is better off without: each time twice as many."""

_OFF_ROUNDS = 8
"""Rounds without the draft from one weighing to the next. Divides the probes' distances."""

_PROBE_ROUNDS = 2
"""The first of them asks, the second uses what came."""


class Planner:
    """Plans the rounds of one session."""

    def __init__(self, pair: PairKnowledge) -> None:
        self.acceptance = AcceptanceEstimate(pair.acceptance)
        self._pair = pair
        self._insists = False
        self._off = False
        self._off_tokens = 0
        self._next_probe = _FIRST_PROBE
        self._probing = 0

    def plan(self, longest: int, overlap: Overlap | None = None) -> RoundPlan:
        """The next round's, of at most ``longest`` draft tokens. ``overlap`` leaves only one way to draft."""
        if longest <= 0:
            return PLAIN
        if not self._pair.drafting.known:  # ask without waiting, to learn what it takes
            way = overlap or Overlap.ENUMERATE
            return self.fixed(min(_GUESSED_LENGTH, longest), way)
        if self._off and not self._probing and (self._off_tokens + 1) % _OFF_ROUNDS:
            # Where many decode plainly, the verifier waits for all of them to be planned.
            return self._without_draft()
        self._insists = overlap is not None
        ways = [overlap] if overlap else list(Overlap)
        weighed = Forecasts(self._pair, self.acceptance.survivals(longest))
        forecasts = {way: self._corrected(weighed.best(way)) for way in ways}
        rates = {way: rate for way, (rate, _) in forecasts.items()}
        way = overlap or self._pair.common.choose(rates, self._pair.session_count)
        return self._unless_plain(*forecasts[way])

    def observe(self, plan: RoundPlan, tokens: int, seconds: float) -> None:
        """A planned round brought ``tokens`` and took ``seconds``."""
        # What a round of another way than the others' brings says little of either.
        if plan.rate is not None and (self._insists or plan.way is None or self._pair.common.shows(plan.way)):
            self._pair.correction(plan.way).observe(plan.rate * seconds, tokens)

    def fixed(self, draft_length: int, overlap: Overlap) -> RoundPlan:
        """A plan that leaves nothing open."""
        branches = 0 if overlap is Overlap.NONE else FIXED_BRANCHES
        return RoundPlan(draft_length, overlap, branches) if draft_length > 0 else PLAIN

    @property
    def plain_rate(self) -> float:
        """Tokens a second without speculation, uncorrected."""
        return 1 / float(self._pair.verify.rounds(self._pair.regime(None))[1])

    def _corrected(self, plan: RoundPlan) -> tuple[float, RoundPlan]:
        assert plan.rate is not None
        return plan.rate * self._pair.correction(plan.way).factor, plan

    def _unless_plain(self, rate: float, plan: RoundPlan) -> RoundPlan:
        """The plan, or plain decoding where that is better."""
        if self._probing:
            self._probing -= 1
            return plan
        known = self._pair.acceptance.count >= _LESSONS  # before that a guess would decide
        plain_rate = self.plain_rate * self._pair.correction(None).factor
        if known and rate <= plain_rate * (_WORTH_A_RETURN if self._off else _WORTH_IT):
            return self._plain(plan)
        self._off, self._next_probe = False, _FIRST_PROBE
        return plan

    def _plain(self, probe: RoundPlan) -> RoundPlan:
        """Plain decoding, but for a probe now and then."""
        if not self._off:
            self._off, self._off_tokens = True, 1
            return RoundPlan(0, rate=self.plain_rate, switches_off=True)
        # What one session's probe shows, all learn; many that probe as often as one would wait for one another.
        if self._off_tokens + 1 < min(self._next_probe * self._pair.session_count, _LAST_PROBE):
            return self._without_draft()
        self._off_tokens = 0
        self._next_probe = min(2 * self._next_probe, _LAST_PROBE)
        self._probing = _PROBE_ROUNDS - 1
        return probe

    def _without_draft(self) -> RoundPlan:
        self._off_tokens += 1
        return RoundPlan(0, rate=self.plain_rate)
