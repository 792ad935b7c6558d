"""What of a proposal's time its steps take, and what comes with any."""

from __future__ import annotations

import random

import pytest

from orchestrator.speculation.costs import DraftCosts
from orchestrator.speculation.plan import Overlap, Regime
from orchestrator.speculation.starts import StartAndStep

_WAITING = Regime(Overlap.NONE)


def test_while_all_proposals_are_alike_all_of_their_time_is_their_steps() -> None:
    line = StartAndStep()
    assert (line.start, line.step) == (0.0, 0.0)
    for count in range(1, 30):
        line.observe(4, 0.002)
        assert line.step == pytest.approx(0.0005), count
        assert line.start == pytest.approx(0.0, abs=1e-9)


def test_of_different_lengths_it_says_both() -> None:
    line, draw = StartAndStep(), random.Random(1)
    for _ in range(100):
        steps = draw.randint(1, 8)
        line.observe(steps, (0.0004 + steps * 0.00005) * draw.uniform(0.9, 1.1))
    assert line.step == pytest.approx(0.00005, rel=0.3)
    assert line.start == pytest.approx(0.0004, rel=0.15)


def test_neither_is_ever_negative() -> None:
    line = StartAndStep()
    for steps, seconds in ((1, 0.004), (8, 0.001)) * 10:  # the longer the faster
        line.observe(steps, seconds)
    assert line.step == 0.0 and line.start == pytest.approx(0.0025, rel=0.1)
    line = StartAndStep()
    for steps, seconds in ((1, 0.0001), (8, 0.004)) * 10:  # each step slower than the one before
        line.observe(steps, seconds)
    assert line.start == pytest.approx(0.0, abs=1e-9) and line.step > 0.0004


def test_a_hiccup_is_not_a_models_speed() -> None:
    line = StartAndStep()
    for steps in (2, 8) * 20:
        line.observe(steps, steps * 0.001)
    line.observe(2, 10.0)
    assert line.step < 0.0012 and line.start < 0.001


def test_a_length_taken_all_the_time_looks_no_better_for_that() -> None:
    """A draft whose every proposal takes 0.6 ms and 0.05 ms a step more: short ones must not make
    its steps look slow."""
    costs = DraftCosts()
    for steps in [8, 6, 4, 2] * 5 + [2] * 20:
        costs.observe(1, steps, 0.0006 + steps * 0.00005, 0.001 + steps * 0.00005, _WAITING)
    assert costs.alone.at(1) == pytest.approx(0.00005, rel=0.6)
    assert costs.at(2, 1, _WAITING) == pytest.approx(0.0011, rel=0.1)
    assert costs.at(8, 1, _WAITING) == pytest.approx(0.0014, rel=0.15)
