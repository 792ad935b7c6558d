"""How many sessions there are, and by how much forecasts are off, as a pair learns it."""

from __future__ import annotations

import pytest

from orchestrator.speculation.corrections import Corrections
from orchestrator.speculation.costs import StepTimeCurve
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.plan import Overlap, Regime, RoundPlan, load_of
from orchestrator.speculation.planner import Planner

NONE, ENUMERATE = Overlap.NONE, Overlap.ENUMERATE


def test_a_new_load_is_one_at_once_and_an_old_one_for_a_while() -> None:
    pair = PairKnowledge()
    pair.begin_round(8)
    assert pair.load == load_of(8)
    for count in (7, 3, 8, 5, 2, 8) * 10:  # short answers: some have always just ended
        pair.begin_round(count)
        assert pair.load == load_of(8)
    for _ in range(60):
        pair.begin_round(1)
    assert pair.load == load_of(1)


def test_many_turns_at_once_are_told_from_a_steady_load() -> None:
    pair = PairKnowledge()
    assert pair.is_settled
    for count in range(1, 33):
        pair.begin_round(count)
    assert not pair.is_settled
    for _ in range(3 * 32):
        pair.begin_round(32)
    assert pair.is_settled


def shown(corrections: Corrections, regime: Regime, share: float, *, rounds: int = 200, weight: float = 1.0) -> None:
    for _ in range(rounds):
        corrections.observe(regime, 8, 4 / share, 1.0, 4, weight)


def test_what_one_way_shows_is_expected_of_another_as_far_as_it_may_be_common() -> None:
    mild, wild = Corrections(), Corrections()
    shown(mild, Regime(NONE, 2), 0.8)
    shown(wild, Regime(NONE, 2), 0.4)
    assert mild.factor(Regime(ENUMERATE, 2)) == pytest.approx(0.8, abs=0.02)
    assert wild.factor(Regime(NONE, 2)) < 0.45
    assert wild.factor(Regime(ENUMERATE, 2)) == pytest.approx(0.7, abs=0.02), "the rest is the way's own"
    assert mild.factor(Regime(None, 2)) == 1.0, "plain decoding ends in no proposal's middle"


def test_a_way_with_another_load_tells_more_than_another_way() -> None:
    corrections = Corrections()
    shown(corrections, Regime(ENUMERATE, 1), 0.5)
    shown(corrections, Regime(NONE, 2), 0.9)
    assert corrections.factor(Regime(ENUMERATE, 2)) == pytest.approx(0.5, abs=0.02)


def test_a_round_that_weighs_less_moves_less() -> None:
    full, part = Corrections(), Corrections()
    shown(full, Regime(NONE, 2), 0.5, rounds=16)
    shown(part, Regime(NONE, 2), 0.5, rounds=16, weight=0.25)
    assert full.factor(Regime(NONE, 2)) < part.factor(Regime(NONE, 2)) < 1.0


def test_other_work_of_a_tenth_of_a_second_moves_little_however_many_rounds_it_slows() -> None:
    def after_ten_slow_rounds(round_seconds: float) -> float:
        corrections, regime, rate = Corrections(), Regime(NONE), 4 / round_seconds
        for slower in [1.0] * 300 + [2.5] * 10:
            corrections.observe(regime, 1, rate, slower * round_seconds, 4)
        return corrections.factor(regime)

    assert after_ten_slow_rounds(0.1) < 0.75, "more than two seconds: this is how it is now"
    assert after_ten_slow_rounds(0.004) > 0.85


def test_plain_decodings_own_measured_round_is_hardly_corrected() -> None:
    corrections = Corrections()
    shown(corrections, Regime(None, 2), 0.4)
    assert corrections.factor(Regime(None, 2)) == pytest.approx(0.9)
    shown(corrections, Regime(None, 0), 0.4)  # no other session can have drafted beside it: kept as it is
    assert corrections.factor(Regime(None, 0)) == pytest.approx(0.8)


def show(planner: Planner, plan: RoundPlan) -> None:
    """A round of four tokens in a tenth of a second."""
    planner.begin(plan)
    planner.observe(4, 0.1)


def observing(*, previous: Overlap | None, rounds_before: int = 200) -> tuple[PairKnowledge, float]:
    """What is believed of synchronous rounds after twenty that brought half of their forecast, one
    to a turn, each after a round of another way if ``previous`` says so."""
    pair = PairKnowledge()
    pair.common.way = NONE
    for _ in range(rounds_before):
        pair.begin_round(8)
    planner = Planner(pair)
    for _ in range(20):
        planner.begin_turn()
        if previous is not None:
            show(planner, RoundPlan(4, previous))
        show(planner, RoundPlan(4, NONE, rate=80.0))
    return pair, pair.corrections.factor(pair.regime(NONE))


def test_a_turns_first_round_shows_what_its_way_brings_and_the_first_after_another_way_does_not() -> None:
    assert observing(previous=None)[1] < 0.8
    assert observing(previous=NONE)[1] < 0.8
    assert observing(previous=ENUMERATE)[1] == 1.0


def test_turns_of_a_single_round_show_what_they_bring_where_the_draft_enumerates() -> None:
    """A first round finds nothing prepared: it is judged as one that waits for a proposal, whether
    it did or not. What a way loses by not waiting is its own loss."""
    for tokens, believed in ((4, 0.5), (1, 0.3)):
        pair = PairKnowledge()
        pair.common.way = ENUMERATE
        planner = Planner(pair)
        for _ in range(200):
            planner.begin_turn()
            planner.begin(RoundPlan(4, ENUMERATE, 4, rate=1000.0, hit_rate=2000.0, miss_rate=500.0, first_rate=80.0))
            planner.observe(tokens, 0.1)
        assert pair.corrections.factor(pair.regime(ENUMERATE)) == pytest.approx(believed, abs=0.02)


def test_a_round_shows_less_while_many_turns_have_just_begun() -> None:
    (steady, full), (crowded, part) = observing(previous=None), observing(previous=None, rounds_before=1)
    assert steady.is_settled and not crowded.is_settled
    assert full < part - 0.05 < 0.95


def test_neither_a_round_of_another_way_than_the_others_nor_one_without_a_forecast_shows_anything() -> None:
    pair = PairKnowledge()
    pair.common.way = NONE
    planner = Planner(pair)
    for plan in (RoundPlan(4, ENUMERATE, 4, rate=80.0), RoundPlan(4, NONE, rate=0.0), RoundPlan(4, NONE)):
        planner.begin_turn()
        show(planner, plan)
        assert pair.corrections.factor(pair.regime(plan.way)) == 1.0


def test_a_step_that_all_sessions_report_is_one_observation() -> None:
    curve = StepTimeCurve()
    for _ in range(40 * 32):
        curve.observe(64, 0.05, 1 / 32)
    for _ in range(32):  # a slow one
        curve.observe(64, 0.15, 1 / 32)
    assert curve.at(64) == pytest.approx(0.06, abs=0.001)
