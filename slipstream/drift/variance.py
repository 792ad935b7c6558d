"""The variance of an acceptance, from sums over turns of accepted and of drafted tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable

from slipstream.ratio_sums import RatioSums, total


def variance(counts: RatioSums, between_hours: float = 1.0) -> float:
    """Return the variance of an acceptance: that of a ratio over turns, and no less than that of
    independent tokens. It is multiplied by the `overdispersion` ``between_hours``."""
    if counts.count < 2 or not counts.denominator:
        return math.inf
    share = (counts.numerator + 1) / (counts.denominator + 2)
    of_turns = counts.spread(counts.value) * counts.count / (counts.count - 1)
    return between_hours * max(of_turns, counts.denominator * share * (1 - share)) / counts.denominator**2


def overdispersion(hours: Iterable[RatioSums]) -> float:
    """Return how many times as much the acceptance of hours differs as that of their turns alone
    would make it; at least 1."""
    known = list(hours)
    acceptance = total(known).value
    expected = sum(each.spread(acceptance) for each in known)
    found = sum((each.numerator - acceptance * each.denominator) ** 2 for each in known)
    return max(1.0, found / expected) if expected and len(known) > 2 else 1.0
