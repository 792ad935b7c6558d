"""When a step waits for others: only as long as it is worth, and only for those who use to come
back soon."""

from __future__ import annotations

import pytest

from slipstream.engine.batching_delay import BatchingDelay

STEP = 0.020


def habitual(absences: dict[str, float]) -> tuple[BatchingDelay, float]:
    """Sequences that have come back so after ten answers each, and the time since their last answer
    began."""
    delay, now = BatchingDelay(), 0.0
    for _ in range(10):
        delay.record_step_time(STEP)
        now += STEP
        for handle, absence in absences.items():
            delay.record_answer(handle, now)
            delay.record_arrival(handle, now + absence)
        now += 0.1
    for handle in absences:
        delay.record_answer(handle, now)
    return delay, now


def test_a_step_waits_for_sequences_that_come_back_soon() -> None:
    delay, now = habitual({"a": 0.001, "b": 0.003})
    delay.record_arrival("a", now + 0.001)
    assert 0.001 < delay.seconds_to_wait(now + 0.001) < 0.006
    delay.record_arrival("b", now + 0.003)
    assert delay.seconds_to_wait(now + 0.003) == 0


def test_a_step_waits_for_no_sequence_longer_than_it_is_worth() -> None:
    delay, now = habitual({"a": 0.001, "b": 0.012})
    delay.record_arrival("a", now + 0.001)
    assert delay.seconds_to_wait(now + 0.001) == 0


def test_a_sequence_that_stays_away_is_waited_for_once() -> None:
    delay, now = habitual({"a": 0.001, "gone": 0.004})
    delay.record_arrival("a", now + 0.001)
    assert delay.seconds_to_wait(now + 0.001) > 0
    assert delay.seconds_to_wait(now + 0.007) == 0
    delay.record_step_time(STEP)
    delay.record_answer("a", now + 0.030)
    delay.record_arrival("a", now + 0.031)
    assert delay.seconds_to_wait(now + 0.031) == 0


def test_the_wait_ends_with_what_it_is_worth_however_many_are_away() -> None:
    delay, now = habitual({str(index): 0.009 for index in range(50)})
    delay.record_arrival("0", now + 0.0005)
    first = delay.seconds_to_wait(now + 0.0005)
    assert first == pytest.approx(delay.longest, abs=1e-3)
    assert delay.seconds_to_wait(now + 0.0005 + first) == 0


def test_closed_and_unknown_sequences_are_not_waited_for() -> None:
    delay, now = habitual({"a": 0.001, "b": 0.003})
    delay.record_arrival("a", now + 0.001)
    delay.record_answer("new", now)
    delay.forget_sequence("b")
    assert delay.seconds_to_wait(now + 0.001) == 0


def test_nothing_is_waited_for_before_a_step_was_measured() -> None:
    delay = BatchingDelay()
    delay.record_answer("a", 0.0)
    assert delay.seconds_to_wait(0.001) == 0
