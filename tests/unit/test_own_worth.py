"""Guesses on the target's own processors rest where they cost more than they bring."""

from __future__ import annotations

from slipstream.engine.hinting.own_worth import OwnWorth


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
