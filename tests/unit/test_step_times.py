"""The curve of step times follows the machine, and a burst of other work does not change it."""

from __future__ import annotations

import random

import pytest

from slipstream.step_times import RECENT_STEPS, StepTimes

PROFILE = [(1, 0.0252), (8, 0.0266), (64, 0.0378)]


def test_the_profile_is_the_start_and_goes_on_beyond_its_end() -> None:
    times = StepTimes(PROFILE)
    assert times.seconds(1) == pytest.approx(0.0252)
    assert times.seconds(36) == pytest.approx(0.0322)
    assert times.seconds(128) == pytest.approx(0.0506)
    assert StepTimes([(1, 0.01)]).seconds(99) == pytest.approx(0.01)


def test_the_curve_is_a_staircase() -> None:
    times = StepTimes(PROFILE, row_multiple=8)
    assert times.seconds(1) == times.seconds(8) < times.seconds(9) == times.seconds(16)


def test_the_curve_follows_a_slower_machine_and_carries_over_to_other_sizes() -> None:
    times = StepTimes(PROFILE)
    for _ in range(RECENT_STEPS):
        times.record(1, 0.0504)
    assert times.seconds(1) == pytest.approx(0.0504)
    assert times.seconds(64) == pytest.approx(0.0756)


def test_a_burst_of_other_work_changes_nothing() -> None:
    """Seven of fifteen steps take ten times as long, in any order."""
    draw = random.Random(5)
    for _ in range(50):
        quiet, busy = StepTimes(PROFILE), StepTimes(PROFILE)
        quick = [0.0266 * draw.uniform(0.98, 1.02) for _ in range(RECENT_STEPS)]
        slow = quick[:8] + [0.266] * (RECENT_STEPS - 8)
        for order, times in ((quick, quiet), (slow, busy)):
            for seconds in draw.sample(order, RECENT_STEPS):
                times.record(8, seconds)
        assert busy.seconds(8) == pytest.approx(quiet.seconds(8), rel=0.04)


def test_one_slow_step_changes_nothing() -> None:
    times = StepTimes(PROFILE)
    times.record(8, 5.0)
    assert times.seconds(8) == pytest.approx(0.0266)


def test_a_size_that_was_slow_by_chance_is_tried_again() -> None:
    """A step of a size that looks too dear is taken no more, so nothing else would correct it."""
    times = StepTimes(PROFILE)
    for _ in range(3):
        times.record(8, 0.5)
    assert times.seconds(8) == pytest.approx(0.5)
    for _ in range(300):
        times.record(1, 0.0504)
    assert times.seconds(8) == pytest.approx(2 * 0.0266)


def test_more_rows_never_take_less() -> None:
    draw = random.Random(7)
    for _ in range(200):
        times = StepTimes(PROFILE, draw.choice([1, 8]))
        for _ in range(60):
            times.record(draw.choice([1, 2, 5, 9, 33, 100]), draw.uniform(0.005, 0.1))
        seconds = [times.seconds(count) for count in range(1, 200)]
        assert seconds == sorted(seconds)
