"""How much to speculate, on what and when: against counting, formulas and brute force."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.outcomes import Outcome, likeliest_outcomes, odds_of
from orchestrator.speculation.acceptance import AcceptanceEstimate, Calibration, warmth_of
from orchestrator.speculation.budget import VerifyBudget
from orchestrator.speculation.continuations import Continuations
from orchestrator.speculation.costs import DraftCosts, HitRates, StepTimeCurve, VerifyCosts
from orchestrator.speculation.forecasts import Forecasts
from orchestrator.speculation.knowledge import PairKnowledge, VerifierKnowledge
from orchestrator.speculation.plan import Overlap, Regime, RoundPlan, Why
from orchestrator.speculation.planner import Planner
from orchestrator.speculation.proposal import Branch, Confidence, Proposal
from orchestrator.speculation.session import SessionSpeculation
from slipstream.processors import Processors
from tests.clock import Clock

VERIFY, STEP = 0.025, 0.003
HERE = "here"
"""The address of the only verifier."""


def knowledge(
    *, acceptance: float, round_trip: float = 0.0, verify: float = VERIFY, step: float = STEP
) -> PairKnowledge:
    """What a pair knows after a while of steady measurements."""
    pair = PairKnowledge()
    for _ in range(50):
        for way in Overlap:
            pair.verifiers[HERE].costs.observe(8, 8, verify, verify, Regime(way))
        for rows in (1, 8):
            pair.drafting.observe(rows, 6, 6 * step, 6 * step + round_trip, Regime(Overlap.NONE))
    rng = random.Random(1)
    for _ in range(2000):
        accepted = next((i for i in range(8) if rng.random() > acceptance), 8)
        pair.acceptance.observe(8, accepted)
    return pair


def planner_of(pair: PairKnowledge) -> Planner:
    """Of a session that lives on the only verifier."""
    planner = Planner(pair)
    planner.live_on(pair.verifiers[HERE])
    return planner


# --- continuations


def branch(accepted_count: int, next_token: int | None, *tokens: int) -> Branch:
    return Branch(accepted_count, next_token, Proposal(tokens))


def test_a_branch_that_came_true_is_the_next_proposal_and_the_others_are_forgotten() -> None:
    known = Continuations()
    tokens = [1, 2, 3]
    known.add(3, (4, 5), branch(2, 6, 7, 8))
    known.add(3, (4, 5), branch(1, 9, 10, 11))
    known.add(3, (4, 5), branch(0, 4, 12))
    assert known.after(tokens) is None, "verification has not answered yet"
    after = known.after([*tokens, 4, 9])
    assert after is not None and after.tokens == (10, 11)
    assert known.after([*tokens, 4, 9, 10]) == Proposal((11,))
    assert known.after([*tokens, 4, 9, 10, 99]) is None
    assert known.after([*tokens, 4, 9, 10, 11]) is None, "it has been dropped"


def test_a_plain_proposal_goes_on_where_it_was_right() -> None:
    known = Continuations()
    known.add(2, (), branch(0, None, 3, 4, 5, 6))
    assert known.after([1, 2, 3, 4]) == Proposal((5, 6))
    assert known.after([1, 2, 3, 4, 5, 6]) is None


def test_the_longest_continuation_wins_and_keeps_what_belongs_to_its_tokens() -> None:
    known = Continuations()
    sure = tuple(Confidence(-float(i), float(i)) for i in range(3))
    known.add(2, (), Branch(0, None, Proposal((3, 4, 5), confidences=sure)))
    known.add(2, (), branch(0, None, 3, 4))
    after = known.after([1, 2, 3])
    assert after is not None and (after.tokens, after.confidences) == ((4, 5), sure[1:])


# --- n-grams


def test_a_changed_history_is_followed_again() -> None:
    speculation = SessionSpeculation(PairKnowledge())
    assert speculation.from_ngrams([1, 2, 3, 4, 9, 1, 2, 3], 2) is not None
    speculation.begin_turn(4)
    edited = [1, 2, 3, 7, 7, 7, 7, 7, 1, 2, 3]
    found = speculation.from_ngrams(edited, 2)
    assert found is not None and found.proposal.tokens == (7, 7)


# --- acceptance


def test_acceptance_is_learnt_by_position_and_leans_on_the_pair_at_first() -> None:
    pair = AcceptanceEstimate(0.7)
    session = AcceptanceEstimate(pair)
    assert session.at(0) == pytest.approx(0.7)
    for _ in range(400):
        session.observe(4, 2)
    assert session.at(0) > 0.95 and session.at(2) < 0.05
    assert AcceptanceEstimate(pair).at(0) > 0.9, "a new session starts from what the pair has seen"
    survivals = session.survivals(6)
    assert survivals == sorted(survivals, reverse=True) and len(survivals) == 6


def test_old_observations_fade() -> None:
    estimate = AcceptanceEstimate(0.5, window=100)
    for _ in range(100):
        estimate.observe(4, 4)
    for _ in range(100):
        estimate.observe(4, 0)
    assert estimate.at(0) < 0.25


def test_calibration_tells_sure_tokens_from_doubtful_ones() -> None:
    calibration = Calibration()
    sure, doubtful = Confidence(-0.001, 9.0), Confidence(-2.0, 0.05)
    for _ in range(200):
        calibration.observe([sure, doubtful], 1)
    survivals = calibration.survivals([sure, sure, doubtful], [0.5, 0.25, 0.125])
    assert survivals[1] > 0.9 and survivals[2] < 0.1


# --- costs


def test_the_step_time_curve_is_linear_between_what_was_measured_and_never_falls() -> None:
    curve = StepTimeCurve()
    curve.profile([(8, 0.010), (64, 0.012), (256, 0.060)])
    assert curve.at(1) == pytest.approx(0.010)
    assert curve.at(160) == pytest.approx(0.036)
    for _ in range(200):
        curve.observe(64, 0.008)
    assert curve.at(64) == pytest.approx(0.008)
    assert curve.at(1) == curve.at(8) == curve.at(64), "more tokens never take less"
    assert curve.at(512) > curve.at(256)
    for _ in range(200):
        curve.observe(8, 0.009)
    assert curve.at(64) == curve.at(8) == pytest.approx(0.009), "nor where fewer take more by now"


def test_what_a_slow_minute_showed_of_few_tokens_is_over_when_more_take_less() -> None:
    """Plain rounds alone have one token: where the way is another, no step would ever say anything
    new of it."""
    curve = StepTimeCurve()
    curve.profile([(1, 0.006), (8, 0.006), (16, 0.007)])
    for _ in range(50):
        curve.observe(1, 0.030)
    assert curve.at(9) == pytest.approx(0.030)
    curve.observe(16, 0.007)
    assert curve.at(1) == curve.at(9) == pytest.approx(0.007)


def test_a_step_between_two_sizes_does_not_make_the_larger_seem_as_fast() -> None:
    """A draft length of 4 alone is taken, and 5 tokens verified: what 9 take is still known, and is
    scaled with what 5 take."""
    curve = StepTimeCurve()
    curve.profile([(1, 0.0010), (8, 0.0017), (16, 0.0025)])
    for _ in range(100):
        curve.observe(5, 0.0014)
    assert curve.at(5) == pytest.approx(0.0014) and curve.at(8) == pytest.approx(0.0017)
    for factor in (1.5, 0.5):
        for _ in range(100):
            curve.observe(5, factor * 0.0014)
        assert curve.at(5) == pytest.approx(factor * 0.0014, rel=0.02)
        assert curve.at(1) == pytest.approx(factor * 0.0010, rel=0.15)
        assert curve.at(8) == pytest.approx(factor * 0.0017, rel=0.15)


def test_what_a_drafts_work_leaves_behind_is_not_what_tokens_cost() -> None:
    """Half a millisecond more for any verification that comes after a draft's work, plain ones
    between: a token's price is as the verifier measured it, and plain decoding's rounds are what
    they were."""
    costs, plain, waiting = VerifyCosts(), Regime(None), Regime(Overlap.NONE)
    costs.profile([(1, 0.0005), (8, 0.0009), (16, 0.0013)])
    for _ in range(100):
        costs.observe(1, 1, 0.0005, 0.0005, plain)
        costs.observe(5, 5, 0.0012, 0.0012, waiting)
    assert costs.at(1, plain) == pytest.approx(0.0005)
    assert costs.at(5, waiting) == pytest.approx(0.0012, rel=0.02)
    assert costs.at(8, waiting) - costs.at(1, waiting) < 0.0008
    for _ in range(100):
        costs.observe(5, 5, 0.0004, 0.0004, waiting)
    assert costs.at(1, plain) <= 0.00041, "a slow minute's plain rounds are over when more tokens take less, cold"


def test_other_sessions_tokens_count_into_a_step() -> None:
    costs, regime = VerifyCosts(), Regime(Overlap.NONE)
    for own, in_step, seconds in ((8, 8, 0.010), (8, 128, 0.030)) * 50:
        costs.observe(own, in_step, seconds, seconds + 0.001, regime)
    assert costs.at(8, regime) > 0.015


def test_tokens_up_to_a_verifiers_next_padding_cost_nothing_unless_others_fill_the_step() -> None:
    costs, regime = VerifyCosts(), Regime(Overlap.NONE)
    costs.profile([(1, 0.005), (8, 0.005), (16, 0.007), (24, 0.009)], row_multiple=8)
    for _ in range(30):
        costs.observe(11, 11, 0.008, 0.008, regime)
    assert [round(costs.at(own, regime), 6) for own in (1, 8, 9, 16, 17)] == [0.005, 0.005, 0.008, 0.008, 0.009]
    for _ in range(60):
        costs.observe(4, 16, 0.008, 0.008, regime)
    assert costs.at(2, regime) < costs.at(3, regime) < costs.at(4, regime)


def test_a_step_of_more_rows_takes_longer_where_it_did() -> None:
    costs, regime = DraftCosts(), Regime(Overlap.NONE)
    assert not costs.known
    for _ in range(30):
        costs.observe(1, 4, 4 * 0.001, 0.005, regime)
        costs.observe(8, 4, 4 * 0.0024, 0.011, regime)
    assert costs.alone.at(1) == pytest.approx(0.001)
    assert 2 * costs.alone.at(4) == pytest.approx(2 * 0.0016)
    assert costs.at(3, 8, regime) == pytest.approx(3 * 0.0024 + costs.around.at(regime))


def test_many_sessions_ask_a_loaded_draft_for_fewer_branches() -> None:
    def branches(session_count: int) -> int:
        pair = knowledge(acceptance=0.8)
        for _ in range(50):
            for rows in (64, 512):
                seconds = 6 * (STEP + rows * 50e-6)
                pair.drafting.observe(rows, 6, seconds, seconds, Regime(Overlap.NONE))
        for rank in [0, 0, 0, 1, 1, 2, 3, 5, 9, 14] * 50:
            pair.hits.observe(16, rank)
        pair.begin_round(session_count)
        plan = planner_of(pair).plan(32)
        return plan.branch_count if plan.overlap is Overlap.ENUMERATE else 0

    assert branches(1) == 16
    assert branches(64) < 8


def test_hit_rates_are_learnt_by_rank() -> None:
    hits = HitRates()
    rng = random.Random(5)
    for _ in range(2000):
        rank = min(int(rng.expovariate(0.7)), 20)
        hits.observe(16, rank if rank < 16 else None)
    assert hits.at(1) == pytest.approx(0.5, abs=0.08)
    assert hits.at(4) == pytest.approx(0.94, abs=0.05)
    assert hits.at(16) > 0.97


def test_a_miss_of_few_branches_says_nothing_of_the_ones_that_were_not_asked_for() -> None:
    hits = HitRates()
    rng = random.Random(5)
    for number in range(4000):
        branches, rank = (4, 16)[number % 2], rng.randrange(20)
        hits.observe(branches, rank if rank < branches else None)
    assert [hits.at(count) for count in (2, 4, 8, 16)] == pytest.approx([0.1, 0.2, 0.4, 0.8], abs=0.07)


# --- plans


def expected(acceptance: float, length: int) -> float:
    return sum(acceptance**i for i in range(length + 1))


@pytest.mark.parametrize("acceptance", [0.6, 0.8, 0.9])
def test_a_synchronous_plan_maximises_tokens_a_second(acceptance: float) -> None:
    planner = planner_of(knowledge(acceptance=acceptance))
    plan = planner.plan(32, Overlap.NONE)
    rates = {k: expected(acceptance, k) / (VERIFY + k * STEP) for k in range(1, 33)}
    assert rates[plan.draft_length] > 0.98 * max(rates.values())


def test_a_draft_near_by_prepares_and_one_far_away_runs_ahead_or_rests() -> None:
    assert planner_of(knowledge(acceptance=0.8)).plan(32).overlap is Overlap.ENUMERATE
    far = planner_of(knowledge(acceptance=0.97, round_trip=0.08)).plan(32)
    assert (far.way, far.draft_length > 8) == (Overlap.RUN_AHEAD, True)
    assert planner_of(knowledge(acceptance=0.3, round_trip=0.08)).plan(32).way is None


def test_a_draft_that_is_never_right_is_switched_off_and_probed_ever_more_seldom() -> None:
    planner = planner_of(knowledge(acceptance=0.0))
    plans = [planner.plan(32) for _ in range(3000)]
    tries = [index for index, plan in enumerate(plans) if plan.draft_length]
    assert [plan.switches_off for plan in plans].index(True) == 0
    assert sum(plan.switches_off for plan in plans) == 1
    assert 6 <= len(tries) <= 16
    gaps = [b - a for a, b in itertools.pairwise(tries) if b - a > 1]
    assert gaps == sorted(gaps) and gaps[-1] >= 8 * gaps[0]


def test_a_draft_that_recovers_is_switched_on_again() -> None:
    pair = knowledge(acceptance=0.0)
    planner = planner_of(pair)
    for _ in range(400):
        plan = planner.plan(32)
        if plan.draft_length:
            planner.acceptance.observe(plan.draft_length, plan.draft_length)
    assert all(planner.plan(32).draft_length for _ in range(20))


def test_that_a_draft_pays_again_is_said_once_and_a_try_is_not_that() -> None:
    planner = planner_of(knowledge(acceptance=0.0))
    resting = [planner.plan(32) for _ in range(500)]
    assert planner.rests and any(plan.why is Why.TRY for plan in resting)
    assert not any(plan.switches_on for plan in resting)
    for _ in range(60):
        planner.acceptance.observe(8, 8)
    again = [planner.plan(32) for _ in range(100)]
    assert sum(plan.switches_on for plan in again) == 1 and not planner.rests
    assert again[-1].why is Why.FORECAST


@pytest.mark.parametrize("session_count", [1, 8])
def test_a_slow_minute_of_plain_decoding_does_not_make_drafting_pay_for_ever(session_count: int) -> None:
    """That it is over only plain rounds can show, and there are none where all draft."""
    pair = knowledge(acceptance=0.2, step=0.02)
    home, planners = pair.verifiers[HERE], [planner_of(pair) for _ in range(session_count)]
    pair.begin_round(session_count)
    home.begin_round(session_count)
    took = {way: VERIFY if way is None else 1.3 * VERIFY for way in (None, *Overlap)}
    for _ in range(200):
        for way in Overlap:
            home.costs.observe(8, 8, VERIFY, took[way], home.regime(way))
        home.costs.observe(8, 8, VERIFY, 3 * VERIFY, home.regime(None))
    plans: list[RoundPlan] = []
    for _ in range(700):
        for planner in planners:
            plans.append(planner.plan(32))
            home.costs.observe(8, 8, VERIFY, took[plans[-1].way], home.regime(plans[-1].way), share=1 / session_count)
    assert plans[0].way is not None
    assert any(plan.way is None and plan.why is Why.TRY for plan in plans)
    assert all(plan.way is None for plan in plans[-20 * session_count :])
    assert sum(plan.switches_off for plan in plans) == session_count, "said once, and not of the try"


def test_a_draft_that_fails_again_is_probed_as_early_as_the_first_time() -> None:
    pair = knowledge(acceptance=0.0)
    planner = planner_of(pair)
    for _ in range(1500):
        planner.plan(32)
    for _ in range(60):
        planner.acceptance.observe(8, 8)
    assert planner.plan(32).draft_length
    for _ in range(1500):
        planner.acceptance.observe(8, 0)
    later = [planner.plan(32).draft_length for _ in range(100)]
    assert later[0] == 0
    assert next(index for index, length in enumerate(later) if length) < 60


@pytest.mark.parametrize(("wrong", "right"), [(Overlap.NONE, Overlap.ENUMERATE), (Overlap.ENUMERATE, Overlap.NONE)])
def test_a_way_that_a_slow_minute_made_look_bad_is_found_again(wrong: Overlap, right: Overlap) -> None:
    """Only its own rounds show that it is as fast again, and none are run while it looks bad."""
    pair = knowledge(acceptance=0.7)
    costs, planner = pair.verifiers[HERE].costs, planner_of(pair)
    seconds = {wrong: 3 * VERIFY, right: VERIFY}
    for _ in range(100):
        costs.observe(8, 8, 6 * VERIFY, 6 * VERIFY, Regime(right))
        costs.observe(8, 8, seconds[wrong], seconds[wrong], Regime(wrong))
    ways = []
    for _ in range(200):
        plan = planner.plan(32)
        planner.begin(plan)
        ways.append(plan.overlap)
        took = seconds[right] if plan.overlap is right else seconds[wrong]
        costs.observe(1 + plan.draft_length, 8, took, took, Regime(plan.overlap))
    assert ways[0] is not right and ways[50:].count(right) > 0.9 * len(ways[50:])


def test_how_often_a_draft_is_right_is_known_for_each_temperature() -> None:
    pair = knowledge(acceptance=0.7)
    for _ in range(200):
        pair.acceptances[warmth_of(0.0)].observe(8, 8)
        pair.acceptances[warmth_of(1.0)].observe(8, 0)
    planner = planner_of(pair)
    planner.draw_at(warmth_of(0.0))
    greedy = planner.plan(32, Overlap.NONE).draft_length
    planner.draw_at(warmth_of(1.0))
    drawn = planner.plan(32, Overlap.NONE).draft_length
    planner.draw_at(warmth_of(0.0))
    assert greedy == planner.plan(32, Overlap.NONE).draft_length > drawn
    assert [warmth_of(each) for each in (0, 1e-4, 0.5, 0.8, 0.9, 1.0, 2.0)] == [0, 1, 1, 2, 2, 3, 3]


def test_a_lone_sessions_plan_holds_for_four_rounds_once_its_pair_has_had_its_lessons() -> None:
    planner, unknown = planner_of(knowledge(acceptance=0.9)), planner_of(PairKnowledge())
    first = planner.plan(32)
    assert all(planner.plan(32) is planner._kept for _ in range(3)) and planner._rounds == 4
    planner.plan(32)
    assert first.draft_length and planner._rounds == 1, "weighed again"
    unknown.plan(32)
    assert unknown._kept_for == 0


def test_sessions_that_know_nothing_of_their_own_share_a_weighing_for_longer_and_longer() -> None:
    pair = knowledge(acceptance=0.9)
    first = planner_of(pair)
    first.plan(32)
    others = [planner_of(pair) for _ in range(20)]
    shared = [planner.plan(32, Overlap.NONE) for planner in others]
    weighed = 0, 2, 5, 10, 19
    for one, after in itertools.pairwise(weighed):
        assert all(plan is shared[one + 1] for plan in shared[one + 1 : after]), "the weighing's, taken over"
    assert len({id(plan) for plan in shared}) == 2 * len(weighed) - 1
    others[12]._kept_for = 0  # by then it has rounds of its own
    assert others[12].plan(32, Overlap.NONE) is not shared[12]
    warm = planner_of(pair)
    warm.draw_at(warmth_of(0.8))
    assert warm.plan(32, Overlap.NONE) is not shared[-1]


def test_all_rounds_of_short_turns_count_until_another_way_is_tried() -> None:
    pair, count = knowledge(acceptance=0.9), 0
    while count < 100:
        planner = planner_of(pair)  # every turn is a session of its own, and asks once
        plans = [planner.plan(32) for _ in range(3)]
        if any(plan.why is Why.TRY for plan in plans):
            break
        count += len(plans)
    assert 18 <= count <= 24


def test_long_drafts_are_not_forecast_to_bring_what_turns_are_too_short_for() -> None:
    """Against turns that are drawn."""
    pair = knowledge(acceptance=0.98)
    home, survivals = pair.verifiers[HERE], pair.acceptance.survivals(64)
    for _ in range(50):
        home.costs.observe(64, 64, 3 * VERIFY, 3 * VERIFY, Regime(Overlap.NONE))
    pair.turn_length.observe(12)
    plan = Forecasts(pair, home, survivals).best(Overlap.NONE)
    rng = np.random.default_rng(0)
    lasts = rng.geometric(1 / 12, 100_000)
    survived = np.searchsorted(-np.array(survivals), -rng.random(100_000))
    verified = np.minimum(lasts - 1, plan.draft_length)
    verifying = np.array(home.costs.rounds(Regime(Overlap.NONE)))[1 + verified]
    seconds = verifying + STEP * np.minimum(lasts, plan.draft_length)
    assert plan.rate == pytest.approx((1 + np.minimum(survived, verified)).mean() / seconds.mean(), rel=0.01)


def test_forecasts_that_do_not_come_true_are_corrected() -> None:
    planner = planner_of(knowledge(acceptance=0.8))
    assert planner.plan(32).way is Overlap.ENUMERATE
    for _ in range(200):
        plan = planner.plan(32)
        seconds = 0.2 if plan.way is Overlap.ENUMERATE else 0.03
        planner.begin(plan)
        planner.observe(3, seconds)
    assert planner.plan(32).way is not Overlap.ENUMERATE


def test_a_round_whose_branches_missed_is_no_worse_than_one_of_those_that_miss() -> None:
    pair = knowledge(acceptance=0.8)
    planner = planner_of(pair)
    for number in range(100):
        plan = planner.plan(32, Overlap.ENUMERATE)
        assert plan.rate and plan.hit_rate and plan.miss_rate
        assert plan.miss_rate < plan.rate < plan.hit_rate
        assert plan.first_rate == planner_of(pair).plan(32, Overlap.NONE).rate
        hit = number % 10 > 0
        planner.begin(plan)
        planner.observe(0.03 * (plan.hit_rate if hit else plan.miss_rate), 0.03, hit)
    assert pair.corrections.factor(pair.regime(Overlap.ENUMERATE)) == pytest.approx(1.0, abs=0.01)


def test_a_way_that_was_worse_than_forecast_gets_another_try_now_and_then() -> None:
    pair = knowledge(acceptance=0.8)
    planner = planner_of(pair)
    ways = []
    for _ in range(2000):
        plan = planner.plan(32)
        ways.append(plan.way)
        assert plan.rate is not None
        seconds = 0.2 if plan.way is Overlap.ENUMERATE else 3 / plan.rate
        planner.begin(plan)
        planner.observe(3, seconds)
    assert ways[0] is Overlap.ENUMERATE
    assert 0 < ways[100:].count(Overlap.ENUMERATE) < 100


def test_nothing_is_planned_without_room_and_nothing_waited_for_before_anything_is_known() -> None:
    planner = Planner(PairKnowledge())
    assert planner.plan(0).draft_length == 0
    assert planner.plan(16).overlap is Overlap.ENUMERATE
    assert planner.fixed(5, Overlap.NONE) == RoundPlan(5, why=Why.FIXED)


def share_processors(pair: PairKnowledge, thread_count: int) -> None:
    """Draft and verifier compute on the same two."""
    pair.processors = pair.verifiers[HERE].processors = Processors("m", frozenset({0, 1}), thread_count)


@pytest.mark.parametrize("thread_count", [1, 2])
def test_no_session_overlaps_on_processors_that_both_models_need(thread_count: int) -> None:
    pair = knowledge(acceptance=0.8)  # by which to overlap is forecast to bring more
    share_processors(pair, thread_count)
    planner = planner_of(pair)
    ways = set()
    for _ in range(3000):  # tries of another way among them
        plan = planner.plan(16)
        ways.add(plan.way)
        planner.begin(plan)
        planner.observe(2, 2 / (plan.rate or 40))
    assert (Overlap.ENUMERATE in ways) is (thread_count == 1)
    assert Overlap.NONE in ways
    assert planner.plan(16, Overlap.ENUMERATE).way is Overlap.ENUMERATE, "who asks for it gets it"


def test_who_may_not_overlap_decides_apart_from_those_that_may() -> None:
    pair = knowledge(acceptance=0.8)
    share_processors(pair, 2)
    for _ in range(50):
        for way in Overlap:
            pair.verifiers["elsewhere"].costs.observe(8, 8, VERIFY, VERIFY, Regime(way))
    near, far = planner_of(pair), Planner(pair)
    far.live_on(pair.verifiers["elsewhere"])
    ways = [(near.plan(16).way, far.plan(16).way) for _ in range(20)]
    assert {way for way, _ in ways} == {Overlap.NONE}
    assert {way for _, way in ways} == {Overlap.ENUMERATE}
    near.live_on(pair.verifiers["elsewhere"])
    assert near.plan(16).way is Overlap.ENUMERATE
    far.live_on(pair.verifiers[HERE])
    assert far.plan(16).way is Overlap.NONE


def test_a_draft_that_has_come_to_share_processors_is_overlapped_no_more() -> None:
    pair = knowledge(acceptance=0.8)
    old = planner_of(pair)
    assert old.plan(16).way is Overlap.ENUMERATE
    share_processors(pair, 2)  # it was started again, with other threads
    assert planner_of(pair).plan(16).way is Overlap.NONE, "nor by a plan that others have left"
    assert old.plan(16).way is Overlap.NONE


def test_a_draft_on_the_verifiers_processors_is_waited_for_from_the_first_round_on() -> None:
    pair = PairKnowledge()
    share_processors(pair, 2)
    assert planner_of(pair).plan(16).overlap is Overlap.NONE


# --- the budget


@settings(max_examples=60, deadline=None)
@given(
    odds=st.lists(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5), min_size=2, max_size=5),
    slope=st.floats(0.0, 0.01),
)
def test_the_budget_keeps_what_brute_force_keeps(odds: list[list[float]], slope: float) -> None:
    costs = VerifyCosts()
    costs.alone.profile([(1, 0.02), (1000, 0.02 + 999 * slope)])
    survivals = [list(itertools.accumulate(row, lambda a, b: a * b)) for row in odds]

    def rate(kept: list[int]) -> float:
        tokens = len(kept) + sum(sum(s[:k]) for s, k in zip(survivals, kept, strict=True))
        return tokens / costs.alone.at(len(kept) + sum(kept))

    best = max(rate(list(kept)) for kept in itertools.product(*(range(len(s) + 1) for s in survivals)))
    budget = VerifyBudget(costs, clock=lambda: 0.0)
    for index, row in enumerate(survivals):
        budget.allowed(index, row)
    budget._fresh_until = -math.inf
    kept = [budget.allowed(index, row) for index, row in enumerate(survivals)]
    assert rate(kept) == pytest.approx(best, rel=1e-6)


def test_a_session_alone_is_not_rationed_and_one_that_left_does_not_count() -> None:
    costs = VerifyCosts()
    costs.alone.profile([(1, 0.02), (100, 5.0)])
    clock = itertools.count().__next__
    budget = VerifyBudget(costs, clock=lambda: float(clock()))
    assert budget.allowed("a", [0.9, 0.8]) == 2
    assert budget.allowed("b", [0.3, 0.1]) == 0
    budget.leave("a")
    assert budget.allowed("b", [0.3, 0.1]) == 2


def test_who_proposes_nothing_has_nothing_weighed_and_many_odds_are_weighed_seldomer() -> None:
    costs, clock = VerifyCosts(), Clock()
    costs.alone.profile([(1, 0.02), (100, 0.02)])
    weighed: list[float] = []
    curve = costs.curve
    costs.curve = lambda regime: weighed.append(clock.now) or curve(regime)  # type: ignore[method-assign,func-returns-value]
    budget = VerifyBudget(costs, clock)
    for name in "abc":
        assert budget.allowed(name, ()) == 0
    assert not weighed
    assert budget.allowed("a", [0.9]) == budget.allowed("b", [0.9]) == 1 and len(weighed) == 1
    clock.now += 0.011
    assert budget.allowed("c", [0.9] * 20_000) == 20_000 and len(weighed) == 2
    clock.now += 0.09
    assert budget.allowed("a", [0.9]) == 1 and len(weighed) == 2
    clock.now += 0.02
    assert budget.allowed("a", [0.9]) == 1 and len(weighed) == 3


def test_a_token_that_has_been_waited_for_is_dearer_to_leave_out() -> None:
    home = VerifierKnowledge()
    home.costs.alone.profile([(1, 0.02), (101, 0.52)])
    odds = [0.8, 0.6, 0.4, 0.2, 0.1]
    speculation = SessionSpeculation(PairKnowledge())
    speculation.live_on(home)
    lengths = [speculation.best_length(odds, Overlap.NONE, waited) for waited in (0.0, 0.03, 0.1)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[1] < lengths[2]
    kept = []
    for waited in (0.0, 0.03, 0.1):
        budget = VerifyBudget(home.costs, clock=itertools.count().__next__)
        budget.join("other")
        kept.append(budget.allowed("this", odds, waited))
    assert kept == sorted(kept) and kept[0] < kept[2]


def test_the_last_tokens_of_a_turn_are_verified_where_another_round_would_take_longer() -> None:
    def best(odds: list[float], *, ending: int | None, longest_step: float) -> int:
        home = VerifierKnowledge()
        home.costs.profile([(8, 0.02), (16, 0.02), (24, longest_step)], row_multiple=8)
        speculation = SessionSpeculation(PairKnowledge())
        speculation.live_on(home)
        return speculation.best_length(odds, Overlap.NONE, 0.0, ending)

    sure, unsure = [0.99] * 17, [0.99] * 10 + [0.2] * 7
    assert best(sure, ending=None, longest_step=0.03) == 15, "sixteen rows with the token before them"
    assert best(sure, ending=17, longest_step=0.03) == 16, (
        "a round's own token is the last one; not 0.02 s and 0.02 s again"
    )
    assert best(sure, ending=17, longest_step=0.05) == 15
    assert best(unsure, ending=17, longest_step=0.03) == 15, "it most likely fails before"
    assert best(sure, ending=16, longest_step=0.03) == 15
    assert best(sure, ending=4, longest_step=0.03) == 3, "nothing comes after an end"
    assert best(sure, ending=1, longest_step=0.03) == 0
    assert best(sure, ending=19, longest_step=0.03) == 15, "what is not weighed cannot be verified"


def test_a_proposal_ends_with_the_first_of_its_tokens_that_ends_a_turn() -> None:
    proposal = Proposal((5, 6, 2, 7, 2))
    assert proposal.ending((2, 3)) == 3
    assert proposal.ending((5,)) == 1
    assert proposal.ending((9,)) is proposal.ending(()) is None


def test_a_session_counts_from_its_turns_first_round_on() -> None:
    costs = VerifyCosts()
    costs.alone.profile([(1, 0.02), (100, 5.0)])
    budget = VerifyBudget(costs, clock=itertools.count().__next__)
    budget.join("a")
    budget.join("b")
    assert budget.session_count == 2
    assert budget.allowed("b", [0.3, 0.1]) == 0, "a has proposed nothing, but its token takes part in the step"
    budget.join("b")
    budget.leave("a")
    assert budget.session_count == 1 and budget.allowed("b", [0.3, 0.1]) == 2


# --- the draft's outcomes


def test_outcomes_are_ranked_by_what_the_candidates_say() -> None:
    sure = [(1, 30.0), (2, 10.0)]
    torn = [(3, 5.0), (4, 4.9), (5, -9.0)]
    outcomes = likeliest_outcomes((1, 3), [sure, torn, [(6, 9.0), (7, 8.0)]], 3)
    assert [(o.accepted_count, o.next_token) for o in outcomes] == [(1, 4), (2, 6), (2, 7)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_outcomes_are_distinct_never_contradict_what_is_in_flight_and_sum_to_at_most_one(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 6))
    rows = [
        [(token, data.draw(st.floats(-20, 20))) for token in data.draw(st.permutations(range(6)))[:4]]
        for _ in range(length + 1)
    ]
    rows = [sorted(row, key=lambda pair: -pair[1]) for row in rows]
    in_flight = [data.draw(st.integers(0, 5)) for _ in range(length)]
    outcomes = likeliest_outcomes(in_flight, rows, 10)
    assert len({replace(o, odds=0.0) for o in outcomes}) == len(outcomes) <= 10
    assert [o.odds for o in outcomes] == sorted((o.odds for o in outcomes), reverse=True)
    assert all(o.accepted_count == length or in_flight[o.accepted_count] != o.next_token for o in outcomes)
    assert sum(o.odds for o in outcomes) <= 1 + 1e-9
    assert all(odds_of(row)[0][1] >= odds for row in rows for _, odds in odds_of(row))


def test_what_cannot_be_chosen_is_no_outcome() -> None:
    row = [(1, 3.0), (2, -math.inf)]
    assert Outcome(0, 2, pytest.approx(0.0125)) in likeliest_outcomes((), [row], 4)
