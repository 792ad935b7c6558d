"""A run waits for a hint if its tokens are worth more than those that the run makes meanwhile."""

from __future__ import annotations

import math

import pytest

from slipstream.engine.hinting.holding import Habit, Hold, divide

STEP = 0.025


def running(tokens: int = 3, delay: float = 0.004, due: float | None = 0.003) -> tuple[Hold, float]:
    """A run of ten steps of ``tokens`` tokens; after each, no hint was in hand and one came
    ``delay`` seconds later."""
    hold, now, length = Hold(Habit()), 0.0, 10
    for _ in range(10):
        hold.record_step(now, length)
        hold.until(now, None, 0.8, None, 0.0)
        hold.record_hint(now + delay, due, length + 1)
        now, length = now + STEP, length + tokens
    hold.record_step(now, length)
    return hold, now


def test_the_price_is_the_tokens_a_second_that_the_run_makes_now() -> None:
    assert running(tokens=3)[0].tokens_per_second == pytest.approx(3 / STEP)
    assert Hold(Habit()).tokens_per_second == 0


def test_a_run_without_a_hint_waits_for_one_that_comes_soon() -> None:
    hold, now = running()
    until = hold.until(now, None, 0.8, None, STEP)
    assert until is not None
    assert now + 0.004 < until < now + 0.006


def test_it_does_not_wait_for_a_hint_that_takes_too_long() -> None:
    """80 ms cost 9.6 tokens."""
    hold, now = running(delay=0.08)
    assert hold.until(now, None, 0.8, None, 1.0) is None


def test_it_waits_for_more_while_the_next_token_is_worth_its_time() -> None:
    """A token takes 3 ms, and the run makes 0.36 tokens in that time."""
    hold, now = running()
    hold.until(now, None, 0.8, None, STEP)
    hold.record_hint(now + 0.004, 0.003, 41)
    assert hold.until(now + 0.004, 0.8, 0.8, None, STEP) is not None
    assert hold.until(now + 0.004, 0.4, 0.8, None, STEP) is None


def test_it_does_not_wait_for_a_maker_that_is_never_right() -> None:
    hold, now = running()
    assert hold.until(now, None, 0.0, None, STEP) is None


def test_it_does_not_wait_if_no_hint_is_on_its_way() -> None:
    hold, now = running(due=None)
    hold.until(now, None, 0.8, None, STEP)
    hold.record_hint(now + 0.004, None, 41)
    assert hold.until(now + 0.004, 0.8, 0.8, None, STEP) is None


def test_it_waits_at_most_the_longest_hold() -> None:
    hold, now = running()
    assert hold.until(now, None, 0.8, None, 0.001) is None
    assert hold.until(now, None, 0.8, None, 0.0045) == pytest.approx(now + 0.0045)


def test_a_run_does_not_miss_the_step_of_others_for_a_hint() -> None:
    hold, now = running()
    assert hold.until(now, None, 0.8, STEP, 1.0) is None


def test_a_frozen_draft_is_waited_for_a_few_times_only() -> None:
    hold, now = running()
    length, waits = 40, 0
    for _ in range(40):
        waits += hold.until(now, None, 0.8, None, STEP) is not None
        now, length = now + STEP, length + 1
        hold.record_step(now, length)
    assert waits <= 1


def test_a_draft_that_is_late_each_time_is_not_waited_for_until_it_recovers() -> None:
    """It says 3 ms each time, and takes 20."""
    hold, now = running()
    length, waits = 40, []
    for _ in range(60):
        hold.record_hint(now, 0.003, length + 1)
        waits.append(hold.until(now, 0.9, 0.8, None, STEP) is not None)
        now, length = now + STEP, length + 3
        hold.record_step(now, length)
    assert waits[0]
    assert not any(waits[20:])
    for _ in range(30):
        hold.record_hint(now, 0.003, length + 1)
        hold.record_hint(now + 0.003, 0.003, length + 2)
    assert hold.until(now + 0.003, 0.9, 0.8, None, STEP) is not None


def test_a_new_run_waits_as_those_before_it_have_taught() -> None:
    """At its first token it has no pace of its own. The draft takes 4 ms, then 1 ms a token, and is
    nearly always right; the target takes 2 ms a token."""
    habit = Habit()
    for _ in range(5):
        hold = Hold(habit)
        hold.record_step(0.0, 10)
        waited = hold.until(0.0, None, 0.98, None, 0.05, 500.0)
        hold.record_hint(0.004, 0.008, 11)
        hold.record_hint(0.012, 0.008, 19)
    assert waited == pytest.approx(0.005)
    assert Hold(habit).until(0.0, None, 0.98, None, 0.05, 500.0) is not None
    assert Hold(habit).until(0.0, None, 0.5, None, 0.05, 500.0) is None
    assert Hold(Habit()).until(0.0, None, 0.98, None, 0.05, 500.0) is None


def test_runs_that_would_hold_alone_go_along_with_others() -> None:
    def stepping(others: float | None) -> float | None:
        return None

    def patient(others: float | None) -> float | None:
        return 7.0

    def only_alone(others: float | None) -> float | None:
        return 5.0 if others is None else None

    def seconds(count: int) -> float:
        return STEP

    assert divide([patient, only_alone], seconds) == ([], 5.0)
    assert divide([stepping, only_alone, patient], seconds) == ([0, 1], math.inf)
    assert divide([], seconds) == ([], math.inf)
