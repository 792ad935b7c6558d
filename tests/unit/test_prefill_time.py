"""What prompts took is told apart from what a round takes."""

from __future__ import annotations

import pytest

from slipstream.engine.prefill_time import PrefillTime

STEP_TIMES = [(1, 0.010), (8, 0.010), (64, 0.038), (256, 0.134)]  # half a millisecond a token beyond eight


def test_a_step_without_prompts_adds_nothing_however_long_it_takes() -> None:
    time = PrefillTime(STEP_TIMES)
    time.record_step_time(1.0, 0.5, 40)
    assert time.total == 0


def test_a_prompt_adds_what_its_tokens_add_to_the_step() -> None:
    time = PrefillTime(STEP_TIMES)
    time.record_step_time(1.0, 0.038, 64, 56)
    assert time.total == pytest.approx(0.028)
    time.record_step_time(1.0, 0.150, 300, 292)  # longer than any that was measured
    assert time.total == pytest.approx(0.028 + 0.146)


def test_what_else_makes_a_step_slow_is_not_the_prompts() -> None:
    time = PrefillTime(STEP_TIMES)
    time.record_step_time(1.0, 0.100, 64, 56)
    assert time.total == pytest.approx(0.028)


def test_a_step_of_nothing_but_prompts_is_theirs_and_never_more_than_it_took() -> None:
    time = PrefillTime(STEP_TIMES)
    time.record_step_time(1.0, 0.120, 256, 256)
    assert time.total == pytest.approx(0.120)


def test_an_item_that_came_during_a_step_waited_for_the_rest_of_it() -> None:
    time = PrefillTime(STEP_TIMES)
    time.record_step_time(1.0, 0.134, 256, 256)
    assert time.total - time.at_arrival(1 - 0.067) == pytest.approx(0.067)
    assert time.total - time.at_arrival(1.5) == 0, "it came later"
    assert time.total - time.at_arrival(-60.0) == pytest.approx(0.134), "no longer than the step"
    time.record_step_time(2.0, 0.010, 8)
    assert time.total - time.at_arrival(2 - 0.005) == 0


def test_without_a_profile_nothing_is_told_apart() -> None:
    time = PrefillTime()
    time.record_step_time(1.0, 0.1, 64, 56)
    assert time.total - time.at_arrival(0.9) == 0
