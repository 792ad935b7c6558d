"""Guesses on the target's own processors rest where they cost more than they bring."""

from __future__ import annotations

from slipstream.engine.hinting.own_worth import CommonWorth, OwnWorth, RunWorth


def guesses(worth: OwnWorth, gain: float, cost: float, length: int, tokens: int = 2000) -> int:
    """Return how many of so many next tokens were guessed at."""
    count = 0
    for at in range(length, length + tokens):
        if not worth.rests_at(at):
            worth.record(gain, cost, at)
            count += 1
    return count


def test_guesses_that_pay_never_rest() -> None:
    assert guesses(OwnWorth(), 1.0, 0.4, 50) == 2000


def test_guesses_that_do_not_pay_are_tried_now_and_then() -> None:
    assert 16 <= guesses(OwnWorth(), 0.1, 0.4, 50) <= 40


def test_a_text_that_becomes_easier_is_found_out() -> None:
    worth = OwnWorth()
    guesses(worth, 0.1, 0.4, 50, 2000)
    assert guesses(worth, 2.0, 0.4, 2050) > 1400


def test_a_text_that_becomes_harder_rests_soon() -> None:
    worth = OwnWorth()
    guesses(worth, 0.6, 0.4, 50, 500)
    assert guesses(worth, 0.1, 0.4, 550, 500) < 60


def test_few_guesses_that_happen_to_fail_do_not_end_all() -> None:
    worth = OwnWorth()
    guesses(worth, 2.0, 0.4, 50, 100)
    worth.record(0.0, 0.4, 150)
    worth.record(0.0, 0.4, 151)
    assert not worth.rests_at(152)


def short_guesses(common: CommonWorth, gain: float, cost: float = 0.4, runs: int = 100) -> int:
    """Return how many tokens of runs of 16 tokens, one after another, were guessed at."""
    count = 0
    for _ in range(runs):
        worth = RunWorth(common)
        for at in range(50, 66):
            if not worth.rests_at(at):
                worth.record(gain, cost, at)
                count += 1
            worth.advance(1)
    return count


def test_short_runs_learn_from_those_before_them() -> None:
    common = CommonWorth()
    assert 16 <= short_guesses(common, 0.1) <= 40
    short_guesses(common, 0.6)  # it finds out after a rest at most
    assert short_guesses(common, 0.6) == 1600


def test_a_run_goes_by_its_own_guesses_once_it_has_some() -> None:
    common = CommonWorth()
    mine = RunWorth(common)
    for at in range(50, 70):
        mine.record(1.0, 0.4, at)
    short_guesses(common, 0.1)
    assert common.rests and not mine.rests_at(70)


def test_the_texts_of_one_caller_do_not_keep_anothers_long_run_from_guesses() -> None:
    common, count = CommonWorth(), 0
    worth = RunWorth(common)
    for at in range(50, 450):
        short_guesses(common, 0.0, runs=4)  # another caller's, which take every trial
        if not worth.rests_at(at):
            worth.record(1.0, 0.4, at)
            count += 1
        worth.advance(1)
    assert count >= 400 - 64
