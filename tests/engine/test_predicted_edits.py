"""Predictions in simulated time: what a right one brings, and what a wrong one costs."""

from __future__ import annotations

import random
from array import array

import pytest

from benchmarks.predicted_edits import NUMBERS, ROUND_TRIPS, changed, pairs, rate

RANDOM = [
    (
        array("i", random.Random(2 * seed).choices(range(2000), k=400)),
        random.Random(2 * seed + 1).choices(range(2000), k=300),
    )
    for seed in range(3)
]
"""Predictions that no answer follows."""


@pytest.mark.parametrize(("round_trip", "least"), list(zip(ROUND_TRIPS, (6, 6, 4), strict=True)))
def test_a_file_that_is_rewritten_comes_faster_at_any_round_trip(round_trip: float, least: float) -> None:
    known = pairs(3, 500)
    plain = rate([((), after) for _, after in known], round_trip)
    assert rate(known, round_trip) > least * plain
    assert rate([(after, after) for _, after in known], round_trip) > 2 * least * plain


@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
def test_a_prediction_that_is_wrong_costs_at_most_two_percent(round_trip: float) -> None:
    assert rate(RANDOM, round_trip) > 0.98 * rate([((), after) for _, after in RANDOM], round_trip)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_no_number_is_at_an_edge(factor: float) -> None:
    known = pairs(3, 500)
    usual = rate(known, 0.01)
    for name in NUMBERS:
        with changed(name, factor):
            assert rate(known, 0.01) > 0.8 * usual, name
    assert rate(known, 0.01) == usual
