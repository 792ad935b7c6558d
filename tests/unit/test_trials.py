"""Trials find the better way, follow a change, and cost little. Seeded."""

from __future__ import annotations

import random

import pytest

from orchestrator.proposers.trials import Grade, SharedProcessors, Trials


class Pair:
    """Sessions whose rate with hints is ``gain`` times that without, in parts of some tokens."""

    def __init__(self, gain: float, noise: float, seed: int) -> None:
        self.gain, self.noise, self.draw = gain, noise, random.Random(seed)
        self.now = 0.0
        self.trials = Trials(lambda: self.now)
        self.tokens = 0

    def run(self, seconds: float) -> float:
        """The rate over so many seconds, 1 being that without hints."""
        end, tokens, begun = self.now + seconds, 0.0, self.now
        while self.now < end:
            rate = (
                500
                * (self.gain if self.trials.is_on else 1.0)
                * self.draw.lognormvariate(self.noise**2 / 2, self.noise)
            )
            began = self.now
            self.now += 5 / rate
            tokens += 5
            self.tokens += 5
            self.trials.record(began, self.now, 5)
        return tokens / (self.now - begun) / 500


@pytest.mark.parametrize("stream_count", [1, 8])
def test_chats_that_are_shorter_than_a_window_end_it(stream_count: int) -> None:
    now = 0.0
    trials = Trials(lambda: now)
    seen = [trials.is_on]
    while now < 2.0:  # answers of 20 tokens, each of another chat
        for _ in range(stream_count):
            trials.record(now, now + 0.05, 20)
        now += 0.05
        seen.append(trials.is_on)
    assert True in seen and False in seen


@pytest.mark.parametrize("gain", [0.3, 0.7, 0.9, 1.1, 1.5, 2.0])
def test_the_better_way_is_found(gain: float) -> None:
    rates = []
    right = 0
    for seed in range(10):
        pair = Pair(gain, 0.3, seed)
        pair.run(4.0)
        rates.append(pair.run(60.0))
        right += pair.trials.pays == (gain > 1)
    assert right >= 8
    assert sorted(rates)[2] > 0.95 * max(1.0, gain)


def test_a_draft_that_halves_the_rate_is_found_out_soon() -> None:
    tokens = []
    for seed in range(10):
        pair = Pair(0.5, 0.2, seed)
        while pair.trials.pays or pair.trials.is_on:
            pair.run(0.01)
        tokens.append(pair.tokens)
    assert sorted(tokens)[7] <= 200


def test_a_change_is_followed() -> None:
    pair = Pair(0.6, 0.3, 1)
    pair.run(10.0)
    pair.gain = 1.6
    pair.run(20.0)
    assert pair.run(20.0) > 0.95 * 1.6


def test_a_part_that_began_before_a_switch_counts_for_no_window() -> None:
    now = 0.0
    trials = Trials(lambda: now)
    now = 1.0
    trials.record(0.5, now, 100)
    assert not trials.is_on  # the first window has ended
    now = 2.0
    trials.record(0.9, now, 1000)
    assert not trials.is_on
    trials.record(1.5, now, 100)
    assert trials.is_on
    assert trials.pays  # 200 tokens a second each


def test_sessions_whose_hints_are_right_more_often_have_their_own_trials() -> None:
    grade, shared = Grade(), SharedProcessors(lambda: 0.0)
    assert grade.value == 0
    grades = []
    for accepted in (4, 3, 1):
        for _ in range(40):
            grade.record(4, accepted)
        grades.append(grade.value)
    assert grades == [3, 2, 1]
    trials = {shared.trials_of(temperature, each) for temperature in (0.0, 0.8) for each in (0, *grades)}
    assert len(trials) == 8
    assert shared.trials_of(0.0, 3) is shared.trials_of(0.0, 3)
