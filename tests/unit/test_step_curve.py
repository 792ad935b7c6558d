"""Admission and deadlines know what a verifier's steps take, also while it is slow."""

from __future__ import annotations

import pytest

from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.step_curve import StepCurve


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(
    curve: StepCurve, clock: Clock, seconds: float, *, tokens: int = 1, steps: int = 1, prefill: float = 0
) -> None:
    """An answer whose steps have just run."""
    clock.now += seconds * steps
    curve.record(PeerTiming(0.0, seconds * steps, seconds * steps, seconds * steps, steps, tokens, prefill))


def test_so_many_tokens_take_as_many_of_the_longest_steps_profiled_as_they_fill() -> None:
    curve = StepCurve()
    assert curve.work(1000) == 0
    curve.profile([(1, 0.010), (64, 0.020), (256, 0.080)])
    assert curve.work(1) == pytest.approx(0.010)
    assert curve.work(64) == pytest.approx(0.020)
    assert curve.work(1024) == pytest.approx(4 * 0.080)


def test_a_few_profiled_steps_do_not_make_many_tokens_cheap() -> None:
    """A slow machine's profile ends early, on the flat part of the stairs."""
    curve = StepCurve()
    curve.profile([(1, 0.30), (8, 0.30)])
    assert curve.work(800) == pytest.approx(100 * 0.30)


def test_steps_that_take_longer_than_at_the_start_make_all_work_longer() -> None:
    clock = Clock()
    curve = StepCurve(clock)
    curve.profile([(8, 0.010), (256, 0.100)])
    for _ in range(20):
        record(curve, clock, 0.030, tokens=8, steps=4)
    assert curve.work(8) == pytest.approx(0.030)
    assert curve.work(256) == pytest.approx(0.300)


def test_a_slow_step_that_many_sessions_report_is_one_step() -> None:
    clock = Clock()
    curve = StepCurve(clock)
    curve.profile([(32, 0.010)])
    for _ in range(20):
        record(curve, clock, 0.010, tokens=32)
    record(curve, clock, 0.500, tokens=32)
    for _ in range(31):
        clock.now += 1e-4
        curve.record(PeerTiming(0.0, 0.5, 0.5, 0.5, 1, 32))
    assert curve.work(32) == pytest.approx(0.010)


def test_steps_with_prompts_and_answers_without_steps_say_nothing() -> None:
    clock = Clock()
    curve = StepCurve(clock)
    curve.profile([(1, 0.010)])
    for _ in range(20):
        record(curve, clock, 0.5, prefill=0.4)
        record(curve, clock, 0.5, steps=0)
        record(curve, clock, 0.5, tokens=0)
    assert curve.work(1) == pytest.approx(0.010)


def test_without_a_profile_or_with_one_of_no_time_all_is_unknown() -> None:
    clock = Clock()
    curve = StepCurve(clock)
    record(curve, clock, 0.01)
    curve.profile([(1, 0.0), (8, 0.0)])
    record(curve, clock, 0.01)
    assert curve.seconds(8) == curve.work(8) == 0
