"""How the next round is run: how many draft tokens, and whether the draft works while the target
verifies. Pure.

The way with the best forecast wins (`forecasts`, `common`). What rounds really bring corrects the
forecasts of their kind. Where it does not beat plain decoding the draft is left alone, and probed
now and then.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from orchestrator.speculation.acceptance import AcceptanceEstimate
from orchestrator.speculation.forecasts import FIXED_BRANCHES, Forecasts
from orchestrator.speculation.knowledge import PairKnowledge, VerifierKnowledge
from orchestrator.speculation.plan import PLAIN, Overlap, Regime, RoundPlan, Why
from orchestrator.speculation.switch import TRY_ROUNDS, Switch

_GUESSED_LENGTH = 6
"""Draft tokens to ask for while nothing is known."""

_LESSONS = 12
"""Proposals after which a pair may be judged."""

_UNSETTLED = 0.25
"""What a round shows that ran while many turns began at once, beside others."""

_KEPT_ROUNDS = 8
"""Rounds from one weighing to the next of a session that decodes plainly, or drafts beside as many
others or more: where many are in step, the verifier waits for all of them to be planned."""

_KEPT_ALONE = 4
"""The same of any session whose pair has had its lessons: a round changes little."""

_WEIGHING_SECONDS, _WEIGHING_SHARE, _KEPT_LONGEST = 2.5e-4, 0.01, 16
"""What a weighing takes between rounds, by which time caches hold other things; of the rounds' time
how much it may; and after how many there is one all the same."""


class Planner:
    """Plans the rounds of one session."""

    def __init__(self, pair: PairKnowledge) -> None:
        self._pair = pair
        self._acceptances = _leaning_on(pair)
        self._is_new = True
        """Until its first plan: no other session knows less."""
        self._warmth = 0
        self._home = VerifierKnowledge()
        self._switch = Switch()
        self._rests = False
        self._insists: Overlap | None = None
        self._kept = PLAIN
        self._kept_for = 0
        self._rounds = 1
        """Run since the last weighing."""
        self._ways: tuple[Overlap, ...] = ()
        """To draft, that may be taken beside the present verifier."""
        self._together = pair.common
        """What the sessions decide together that have these ways."""
        self._common: Overlap | None = None
        self._lessons = 0
        self._previous: RoundPlan | None = None
        """Of this turn."""
        self._round: tuple[RoundPlan, Regime, bool] | None = None
        """That runs now: its plan, in what regime it began, and whether it may show what that
        brings."""

    @property
    def rests(self) -> bool:
        """Whether the draft is left alone because it would not pay."""
        return self._rests

    def live_on(self, home: VerifierKnowledge) -> None:
        """The next rounds are this verifier's."""
        if home is not self._home:
            self._home = home
            self._kept_for = 0

    @property
    def acceptance(self) -> AcceptanceEstimate:
        """At the temperature of the next round."""
        return self._acceptances[self._warmth]

    def draft_with(self, pair: PairKnowledge) -> None:
        """The next rounds' proposals are this pair's draft's. One of other weights is right about
        other tokens."""
        if pair.acceptances is not self._pair.acceptances:
            self._acceptances = _leaning_on(pair)
        self._pair = pair
        self._kept_for = 0
        self._previous = None

    def draw_at(self, warmth: int) -> None:
        """The next rounds' tokens are chosen at a temperature of this `warmth_of`."""
        if warmth != self._warmth:
            self._warmth = warmth
            self._kept_for = 0

    def begin_turn(self) -> None:
        """The next round will be a turn's first."""
        self._previous = None

    def plan(self, longest: int, overlap: Overlap | None = None) -> RoundPlan:
        """The next round's, of at most ``longest`` draft tokens. ``overlap`` leaves only one way to
        draft."""
        if longest <= 0:
            return PLAIN
        pair = self._pair
        self._ways = pair.ways_beside(self._home)
        self._together = pair.common if Overlap.ENUMERATE in self._ways else pair.common_apart
        if not pair.drafting.known:  # ask without waiting if that may be, to learn what it takes
            way = overlap or (Overlap.ENUMERATE if Overlap.ENUMERATE in self._ways else Overlap.NONE)
            return replace(self.fixed(min(_GUESSED_LENGTH, longest), way), why=Why.GUESS)
        pair.corrections.begin_round(pair.session_count)
        self._together.begin_round()
        if self._holds(longest, overlap):
            self._rounds += 1
            return self._kept
        self._insists = overlap
        if not self._is_new:
            return self._weigh(longest, overlap)
        self._is_new = False
        alike = self._home, self._warmth, longest, overlap, self._ways, pair.regime(self._together.way)
        known = None if self._together.is_due(pair.session_count) else pair.first_plans.take(alike)
        if known is not None:
            self._keep(known, trying=False)
            return known
        plan = self._weigh(longest, overlap)
        if plan.why is Why.FORECAST:
            pair.first_plans.keep(alike, self._kept)
        return plan

    def begin(self, plan: RoundPlan) -> None:
        """A planned round begins. While it runs, sessions come and go and others may change their
        way: what it will show is of now."""
        # What a round of another way than the others' brings says little of either.
        shows = bool(plan.rate) and (self._insists is not None or plan.way is self._together.way)
        self._round = plan, self._pair.regime(plan.way), shows

    def observe(self, tokens: float, seconds: float, hit: bool | None = None) -> None:
        """The round that began took ``seconds``, and what was verified in it should have brought
        ``tokens``. ``hit``: whether what was prepared came true.

        How many tokens were accepted and how often branches come true are learnt by themselves.
        Chance in them is several times what two ways differ by, and a miss that lowered a
        correction too would count twice.
        """
        assert self._round is not None, "no round has begun"
        plan, regime, shows = self._round
        previous, self._previous = self._previous, plan
        pair, rate = self._pair, plan.rate_of(hit)
        if previous is None and plan.way is Overlap.ENUMERATE:  # nothing can have been prepared, waited for or not
            rate = plan.first_rate
        elif previous is not None and plan.way is not previous.way:
            return  # the first round of a way finds nothing prepared
        if shows and rate:
            weight = 1.0 if pair.is_settled else _UNSETTLED
            pair.corrections.observe(regime, pair.session_count, rate, seconds, tokens, weight)

    def fixed(self, draft_length: int, overlap: Overlap) -> RoundPlan:
        """A plan that leaves nothing open."""
        return _fixed(draft_length, overlap)

    def _weigh(self, longest: int, overlap: Overlap | None) -> RoundPlan:
        pair, home = self._pair, self._home
        weighed = Forecasts(pair, home, self.acceptance.survivals(longest))
        plans: dict[Overlap | None, RoundPlan] = {
            way: weighed.best(way) for way in ([overlap] if overlap else self._ways)
        }
        if pair.acceptance.count >= _LESSONS:  # before that a guess would decide
            plans[None] = RoundPlan(0, rate=1 / home.costs.rounds(home.regime(None))[1])
        rates = {way: (plan.rate or 0.0) * pair.corrections.factor(pair.regime(way)) for way, plan in plans.items()}
        way, trying = self._way(rates, overlap)
        plan = plans[way]
        if trying and self._together.trying:
            if way is not None:
                pair.drafting.doubt(pair.regime(way))
            home.costs.doubt(home.regime(way))
        if way is None and trying:
            plan = replace(plan, why=Why.TRY)
        elif way is None:
            plan, self._rests = replace(plan, switches_off=not self._rests, why=Why.NOT_WORTH_IT), True
        else:
            why = Why.TRY if trying else Why.FORECAST
            plan = replace(plan, switches_on=self._rests and not trying, why=why)
            self._rests = self._rests and trying
        self._keep(plan, trying)
        return plan

    def _way(self, rates: dict[Overlap | None, float], overlap: Overlap | None) -> tuple[Overlap | None, bool]:
        """The way to take, and whether only to see what it brings by now."""
        pair, together, rounds, self._rounds = self._pair, self._together, self._rounds, 1
        way = overlap
        if way is None:
            seen = {way: pair.drafting.around.count_at(pair.regime(way)) for way in rates if way is not None}
            way = together.choose(rates, pair.session_count, pair.load, seen)
            if way is None or together.trying or pair.session_count == 1:
                return way, together.trying
        if None not in rates:
            return way, False
        drafts = self._switch.drafts(rates[way] / rates[None], rounds)
        return (way if drafts else None), self._switch.trying

    def _keep(self, plan: RoundPlan, trying: bool) -> None:
        self._kept = replace(plan, switches_off=False, switches_on=False)
        self._common, self._lessons = self._together.way, self.acceptance.count
        if trying:
            self._kept_for = TRY_ROUNDS
        elif plan.way is None:
            self._kept_for = max(_KEPT_ROUNDS, self._worth_a_weighing(plan))
        elif self._pair.acceptance.count >= _LESSONS:
            in_step = min(_KEPT_ROUNDS, self._pair.session_count)
            self._kept_for = max(_KEPT_ALONE, in_step, self._worth_a_weighing(plan))
        else:
            self._kept_for = min(_KEPT_ROUNDS, self._pair.session_count)

    def _worth_a_weighing(self, plan: RoundPlan) -> int:
        """Rounds by such a plan that take so long that a weighing is next to nothing."""
        home = self._home
        round_seconds = home.costs.rounds(home.regime(plan.way))[1 + plan.draft_length]
        return min(_KEPT_LONGEST, math.ceil(_WEIGHING_SECONDS / (_WEIGHING_SHARE * round_seconds)))

    def _holds(self, longest: int, overlap: Overlap | None) -> bool:
        """Whether the last plan still does."""
        if self._rounds >= self._kept_for or self._kept.draft_length > longest or overlap is not self._insists:
            return False
        lessons = self.acceptance.count - self._lessons
        if lessons >= (self._kept_for if self._kept.way else 1):
            return False
        return overlap is not None or self._together.way is self._common


def _leaning_on(pair: PairKnowledge) -> list[AcceptanceEstimate]:
    """One session's own, by `warmth_of`."""
    return [AcceptanceEstimate(of_all) for of_all in pair.acceptances]


@cache
def _fixed(draft_length: int, overlap: Overlap) -> RoundPlan:
    branches = 0 if overlap is Overlap.NONE else FIXED_BRANCHES
    return RoundPlan(draft_length, overlap, branches, why=Why.FIXED) if draft_length > 0 else PLAIN
