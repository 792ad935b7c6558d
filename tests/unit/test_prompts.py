"""What prompts took is told apart from what a round takes."""

from __future__ import annotations

import pytest

from slipstream.engine.prompts import PromptTime

STEP_TIMES = [(1, 0.010), (8, 0.010), (64, 0.038), (256, 0.134)]  # half a millisecond a token beyond eight


def test_a_step_without_prompts_adds_nothing_however_long_it_takes() -> None:
    time = PromptTime(STEP_TIMES)
    time.stepped(1.0, 0.5, 40)
    assert time.sum == 0


def test_a_prompt_adds_what_its_tokens_add_to_the_step() -> None:
    time = PromptTime(STEP_TIMES)
    time.stepped(1.0, 0.038, 64, 56)
    assert time.sum == pytest.approx(0.028)
    time.stepped(1.0, 0.150, 300, 292)  # longer than any that was measured
    assert time.sum == pytest.approx(0.028 + 0.146)


def test_what_else_makes_a_step_slow_is_not_the_prompts() -> None:
    time = PromptTime(STEP_TIMES)
    time.stepped(1.0, 0.100, 64, 56)
    assert time.sum == pytest.approx(0.028)


def test_a_step_of_nothing_but_prompts_is_theirs_and_never_more_than_it_took() -> None:
    time = PromptTime(STEP_TIMES)
    time.stepped(1.0, 0.120, 256, 256)
    assert time.sum == pytest.approx(0.120)


def test_an_item_that_came_during_a_step_waited_for_the_rest_of_it() -> None:
    time = PromptTime(STEP_TIMES)
    time.stepped(1.0, 0.134, 256, 256)
    assert time.sum - time.arrived(1 - 0.067) == pytest.approx(0.067)
    assert time.sum - time.arrived(1.5) == 0, "it came later"
    assert time.sum - time.arrived(-60.0) == pytest.approx(0.134), "no longer than the step"
    time.stepped(2.0, 0.010, 8)
    assert time.sum - time.arrived(2 - 0.005) == 0


def test_without_a_profile_nothing_is_told_apart() -> None:
    time = PromptTime()
    time.stepped(1.0, 0.1, 64, 56)
    assert time.sum - time.arrived(0.9) == 0
