"""Choices from some of a row's log-probabilities follow the row's exact distribution."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from slipstream.sampling.partial.wanted import first_request
from slipstream.sampling.row import Choice, Row
from slipstream.sampling.rule import SamplingRule
from tests.partial_server import AnsweringRow
from tests.statistical.chi_square import FALSE_ALARM, p_value

SIZE, DRAWS = 300, 2_000


@pytest.mark.parametrize(
    ("limit", "takes_ids", "tells_best_id"), [(5, True, False), (5, True, True), (None, False, False)]
)
def test_choices_of_many_seeds_follow_the_softmax(limit: int | None, takes_ids: bool, tells_best_id: bool) -> None:
    logits = (np.random.default_rng(3).normal(size=SIZE) * 2).astype(np.float32)
    server = AnsweringRow(logits, limit, takes_ids, tells_best_id)
    counts: Counter[int] = Counter()
    for seed in range(DRAWS):
        row = Row(SamplingRule(temperature=0.8, seed=seed), 17)
        server.requests.clear()
        found = server.decide(row, first_request(row, SIZE, most_ids=1024 if takes_ids else 0))
        assert isinstance(found, Choice)
        counts[found.token] += 1
    weights = np.exp((logits - logits.max()).astype(np.float64) / 0.8)
    probabilities = weights / weights.sum()
    assert p_value([counts[token] for token in range(SIZE)], probabilities) > FALSE_ALARM
