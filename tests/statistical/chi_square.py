"""The statistic all tests of distribution share, and how often it cries wolf."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import chisquare

FALSE_ALARM = 1e-6
"""A test fails below this p-value. With a correct sampler and fresh seeds one run of all of them,
fewer than two hundred, raises a false alarm about once in five thousand. Seeds are fixed, so a pass
stays a pass."""


def p_value(counts: Sequence[float], probabilities: np.ndarray) -> float:
    """Of counts under exact probabilities; cells expected fewer than five times are pooled, as the
    approximation wants."""
    observed, expected = np.asarray(counts, dtype=float), probabilities * np.sum(counts)
    assert observed[expected == 0].sum() == 0, "a filtered token was served"
    rare = expected < 5
    kept = ~rare & (expected > 0)
    pooled_observed = np.append(observed[kept], observed[rare].sum())
    pooled_expected = np.append(expected[kept], expected[rare].sum())
    if pooled_expected[-1] < 5:
        pooled_observed, pooled_expected = pooled_observed[:-1], pooled_expected[:-1]
        pooled_expected *= pooled_observed.sum() / pooled_expected.sum()
    return float(chisquare(pooled_observed, pooled_expected).pvalue)
