"""What a target may answer, ranked by a draft that has more tokens in flight."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.outcomes import Outcome, likeliest_outcomes, odds_of


def test_outcomes_are_ranked_by_what_the_candidates_say() -> None:
    sure = [(1, 30.0), (2, 10.0)]
    torn = [(3, 5.0), (4, 4.9), (5, -9.0)]
    outcomes = likeliest_outcomes((1, 3), [sure, torn, [(6, 9.0), (7, 8.0)]], 3)
    assert [(o.accepted_count, o.next_token) for o in outcomes] == [(1, 4), (2, 6), (2, 7)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_outcomes_are_distinct_never_contradict_what_is_in_flight_and_sum_to_at_most_one(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 6))
    rows = [
        [(token, data.draw(st.floats(-20, 20))) for token in data.draw(st.permutations(range(6)))[:4]]
        for _ in range(length + 1)
    ]
    rows = [sorted(row, key=lambda pair: -pair[1]) for row in rows]
    in_flight = [data.draw(st.integers(0, 5)) for _ in range(length)]
    outcomes = likeliest_outcomes(in_flight, rows, 10)
    assert len({replace(o, odds=0.0) for o in outcomes}) == len(outcomes) <= 10
    assert [o.odds for o in outcomes] == sorted((o.odds for o in outcomes), reverse=True)
    assert all(o.accepted_count == length or in_flight[o.accepted_count] != o.next_token for o in outcomes)
    assert sum(o.odds for o in outcomes) <= 1 + 1e-9
    assert all(odds_of(row)[0][1] >= odds for row in rows for _, odds in odds_of(row))


def test_what_cannot_be_chosen_is_no_outcome() -> None:
    row = [(1, 3.0), (2, -math.inf)]
    assert Outcome(0, 2, pytest.approx(0.0125)) in likeliest_outcomes((), [row], 4)
