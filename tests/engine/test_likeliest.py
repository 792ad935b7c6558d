"""The likeliest tokens of a row, against sorting all of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slipstream.sampling.likeliest import likeliest


@given(st.integers(0, 2**32), st.integers(1, 2000), st.integers(1, 70), st.sampled_from([2, 9, 1000]))
def test_they_are_the_first_of_the_row_sorted(seed: int, size: int, count: int, different: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.integers(0, different, size).astype(np.float32)
    row[rng.random(size) < 0.3] = -np.inf
    count = min(count, size)
    expected = sorted(range(size), key=lambda token: (-row[token], token))[:count]
    assert likeliest(row, count).tolist() == expected
