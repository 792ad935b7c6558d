"""Odds of the target's choices, by the candidates of a draft."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.outcomes import odds_of


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8).map(lambda row: sorted(row, reverse=True)))
def test_odds_fall_with_the_logits_and_sum_to_at_most_one(logits: list[float]) -> None:
    odds = odds_of(list(enumerate(logits)))
    assert [token for token, _ in odds] == list(range(len(logits)))
    shares = [share for _, share in odds]
    assert shares == sorted(shares, reverse=True)
    assert 0.94 < sum(shares) <= 1 + 1e-9


def test_a_token_that_cannot_be_chosen_has_some_doubts_odds_alone() -> None:
    (_, _), (token, share) = odds_of([(1, 3.0), (2, -math.inf)])
    assert token == 2
    assert share == pytest.approx(0.0125)
    assert odds_of([(1, -math.inf)]) == odds_of([]) == []
