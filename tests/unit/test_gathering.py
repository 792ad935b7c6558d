"""When a step waits for others: only as long as it is worth, and only for those who use to come
back soon."""

from __future__ import annotations

import pytest

from slipstream.engine.gathering import Gathering

STEP = 0.020


def habitual(absences: dict[str, float]) -> tuple[Gathering, float]:
    """Sequences that have come back so after ten answers each, and the time since their last answer
    began."""
    gathering, now = Gathering(), 0.0
    for _ in range(10):
        gathering.stepped(STEP)
        now += STEP
        for handle, absence in absences.items():
            gathering.answered(handle, now)
            gathering.arrived(handle, now + absence)
        now += 0.1
    for handle in absences:
        gathering.answered(handle, now)
    return gathering, now


def test_a_step_waits_for_those_who_come_back_soon() -> None:
    gathering, now = habitual({"a": 0.001, "b": 0.003})
    gathering.arrived("a", now + 0.001)
    assert 0.001 < gathering.wait(now + 0.001) < 0.006
    gathering.arrived("b", now + 0.003)
    assert gathering.wait(now + 0.003) == 0


def test_nobody_is_waited_for_who_stays_away_longer_than_a_step_is_worth() -> None:
    gathering, now = habitual({"a": 0.001, "b": 0.012})
    gathering.arrived("a", now + 0.001)
    assert gathering.wait(now + 0.001) == 0


def test_one_who_does_not_come_is_waited_for_once() -> None:
    gathering, now = habitual({"a": 0.001, "gone": 0.004})
    gathering.arrived("a", now + 0.001)
    assert gathering.wait(now + 0.001) > 0
    assert gathering.wait(now + 0.007) == 0
    gathering.stepped(STEP)
    gathering.answered("a", now + 0.030)
    gathering.arrived("a", now + 0.031)
    assert gathering.wait(now + 0.031) == 0


def test_the_wait_ends_with_what_it_is_worth_however_many_are_away() -> None:
    gathering, now = habitual({str(index): 0.009 for index in range(50)})
    gathering.arrived("0", now + 0.0005)
    first = gathering.wait(now + 0.0005)
    assert first == pytest.approx(gathering.longest, abs=1e-3)
    assert gathering.wait(now + 0.0005 + first) == 0


def test_closed_and_unknown_sequences_are_not_waited_for() -> None:
    gathering, now = habitual({"a": 0.001, "b": 0.003})
    gathering.arrived("a", now + 0.001)
    gathering.answered("new", now)
    gathering.forget("b")
    assert gathering.wait(now + 0.001) == 0


def test_nothing_is_waited_for_before_a_step_was_measured() -> None:
    gathering = Gathering()
    gathering.answered("a", 0.0)
    assert gathering.wait(0.001) == 0
