"""Whole sessions in simulated time: what hints bring, and what a wrong, dead or lying draft costs.

Each figure depends on its seed only, so no busy machine changes it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import mean

import pytest

from benchmarks.hint_simulation import NEVER, NUMBERS, SMALL, changed
from slipstream.engine.hinting import calibration, hints, horizon, makers
from slipstream.simulation.scenario import Scenario
from slipstream.simulation.simulation import simulate

ONE = Scenario(token_count=400)
STEP = ONE.verify + ONE.verify_row


def rate(scenario: Scenario, seeds: int = 2) -> float:
    return mean(simulate(replace(scenario, seed=seed)).tokens_per_second for seed in range(1, seeds + 1))


def plain(scenario: Scenario) -> float:
    return rate(replace(scenario, is_hinted=False), 1)


def test_a_seed_gives_the_same_run_each_time() -> None:
    assert simulate(ONE) == simulate(ONE)
    assert simulate(ONE) != simulate(replace(ONE, seed=2))


def test_plain_decoding_takes_one_step_a_token() -> None:
    assert plain(ONE) == pytest.approx(1 / STEP, rel=0.02)


@pytest.mark.parametrize(("round_trip", "least"), [(0.0, 2.5), (0.01, 2.3), (0.08, 1.35)])
def test_hints_make_a_session_faster_at_any_round_trip(round_trip: float, least: float) -> None:
    assert rate(replace(ONE, round_trip=round_trip)) > least * plain(ONE)


def test_branches_help() -> None:
    assert rate(ONE) > 1.08 * rate(replace(ONE, has_branches=False))


@pytest.mark.parametrize("stated", [None, 0.99])
def test_a_draft_that_is_never_right_costs_at_most_three_percent(stated: float | None) -> None:
    wrong = replace(ONE, right_from=NEVER, stated=stated)
    assert rate(wrong, 1) > 0.97 * plain(ONE)
    assert rate(replace(wrong, is_shared=True, token_count=1000), 1) > 0.97 * plain(ONE)
    many = replace(wrong, sessions=32, token_count=60)
    assert rate(many, 1) > 0.97 * plain(many)


def test_a_wrong_draft_on_the_cores_of_a_small_target_costs_at_most_five_percent() -> None:
    assert rate(replace(SMALL, right_from=NEVER), 1) > 0.95 * plain(SMALL)


@pytest.mark.parametrize(("is_shared", "within"), [(False, 200), (True, 600)], ids=["own", "shared"])
def test_a_draft_that_recovers_is_used_again_soon(is_shared: bool, within: int) -> None:
    """On shared processors the trials take longer: each may cost tokens."""
    end = 600 + within
    scenario = replace(ONE, token_count=end, is_shared=is_shared)
    times = simulate(replace(scenario, right_from=400)).token_times[0]
    always = simulate(scenario).token_times[0]
    assert times[end - 1] - times[end - 200] < 1.15 * (always[end - 1] - always[end - 200])


def test_ngrams_take_repeated_passages_in_fewer_steps() -> None:
    repeated = replace(ONE, repeated_share=0.5, takes_ngrams=True)
    assert rate(repeated) > 1.1 * plain(repeated)
    assert rate(replace(repeated, repeated_share=0.0)) > 0.99 * plain(ONE)


def test_a_draft_that_dies_leaves_no_gap() -> None:
    """A run that waits for its hint goes on by itself."""
    for is_shared in (False, True):
        times = simulate(replace(ONE, frozen_at=1.5, is_shared=is_shared)).token_times[0]
        gaps = [after - before for before, after in pairwise(times)]
        assert max(gaps[30:]) < 2.5 * STEP
        assert times[-1] - times[-100] < 100 * 1.15 * STEP


def test_many_chats_gain_and_none_is_left_behind() -> None:
    for sessions, least in ((8, 1.7), (32, 1.4)):
        scenario = replace(ONE, sessions=sessions, token_count=80)
        outcome = simulate(scenario)
        assert outcome.tokens_per_second > least * plain(scenario)
        step = 2 * (scenario.verify + 5 * sessions * scenario.verify_row)
        for times in outcome.token_times:
            assert max(after - before for before, after in pairwise(times)) < step


def test_rows_that_cost_much_are_verified_less() -> None:
    cheap = simulate(replace(ONE, sessions=8, token_count=100))
    dear = simulate(replace(ONE, sessions=8, token_count=100, verify_row=0.005))
    assert dear.verified < cheap.verified / 2
    assert dear.tokens_per_second > plain(replace(ONE, sessions=8, token_count=100, verify_row=0.005))


def test_holding_pays_only_where_draft_and_verifier_share_their_processors() -> None:
    alone = replace(ONE, has_branches=False, round_trip=0.01)
    assert rate(replace(alone, holds=True)) < rate(alone)
    shared = replace(ONE, is_shared=True)
    assert rate(shared) > 1.2 * rate(replace(shared, holds=False))


def test_slow_steps_of_other_work_change_little_else() -> None:
    """A fifth of the steps take five times as long: all steps 1.8 times."""
    quiet = replace(ONE, sessions=4, token_count=120)
    assert rate(replace(quiet, slow_share=0.2)) > 0.85 * rate(quiet) / 1.8


def test_each_number_of_the_table_can_be_changed_and_comes_back() -> None:
    def now() -> tuple[object, ...]:
        return hints.MOST_HINTS, vars(horizon)["MOST_HINTS"], calibration.MEMORY, vars(makers)["_NGRAM_ODDS"]

    before = now()
    for number in NUMBERS:
        with changed(number, 2):
            assert (now() != before) == (number in ("MOST_HINTS", "MEMORY", "_NGRAM_ODDS"))
    assert now() == before
