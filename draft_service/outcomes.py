"""Choice of the verification outcomes that the draft prepares for. Pure.

While a proposal of k tokens is in flight, the target will answer (accepted_count, next_token). The
draft ranks these outcomes by their odds under its own candidates: the odds that the first
``accepted_count`` tokens are accepted, times the odds of ``next_token`` after them. With shared
noise the candidates' perturbed logits are close to the target's, so this works at any temperature.
Kumar, Dao, May, "Speculative speculative decoding" (2026) derive the geometric fan-out that such a
ranking gives.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

Candidates = Sequence[tuple[int, float]]
"""Tokens and their perturbed logits, best first."""

_DOUBT = 0.05
"""Share of the odds that is spread over the ranks, halved from rank to rank, because drafts are
sometimes wrong even when they are certain."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A possible answer of the verification, with its odds."""

    accepted_count: int
    next_token: int
    odds: float


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


def likeliest_outcomes(in_flight: Sequence[int], candidates: Sequence[Candidates], count: int) -> list[Outcome]:
    """Return at most ``count`` outcomes, likeliest first.

    ``candidates`` holds the draft's candidates at each in-flight token and after the last.
    """
    outcomes: list[Outcome] = []
    survival = 1.0
    for accepted_count, row in enumerate(candidates):
        proposed = in_flight[accepted_count] if accepted_count < len(in_flight) else None
        accepted = _DOUBT * 0.5 ** len(row)  # odds of a proposed token that is not a candidate
        for token, odds in odds_of(row):
            if token == proposed:
                accepted = odds
            else:
                outcomes.append(Outcome(accepted_count, token, survival * odds))
        survival *= accepted
    return heapq.nlargest(count, outcomes, key=lambda outcome: outcome.odds)
