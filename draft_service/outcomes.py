"""Odds of the target's choice at a position, by the draft's candidates. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

Candidates = Sequence[tuple[int, float]]
"""Tokens and their perturbed logits, best first. With shared noise they are close to the target's,
so the odds hold at any temperature."""

_DOUBT = 0.05
"""Share of the odds that is spread over the ranks, halved from rank to rank, because drafts are
sometimes wrong even when they are certain."""


def odds_of(candidates: Candidates) -> list[tuple[int, float]]:
    """Return the odds that the target chooses each candidate: the softmax of the candidates, mixed
    with some doubt."""
    if not candidates or candidates[0][1] == -math.inf:  # no token can be chosen
        return []
    top = candidates[0][1]
    weights = [math.exp(value - top) if value > -math.inf else 0.0 for _, value in candidates]
    total = sum(weights)
    return [
        (token, (1 - _DOUBT) * weight / total + _DOUBT * 0.5 ** (rank + 1))
        for rank, ((token, _), weight) in enumerate(zip(candidates, weights, strict=True))
    ]
