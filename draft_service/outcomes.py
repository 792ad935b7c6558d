"""Which outcomes of a verification the draft prepares for. Pure.

With a proposal of k tokens in flight the target answers (accepted_count, next_token). The draft
ranks these outcomes by the odds that its own candidates give them: that the first
``accepted_count`` tokens survive, times that of ``next_token`` after them. With shared noise the
candidates' perturbed logits are near the target's own, so this holds at any temperature. Kumar,
Dao, May, "Speculative speculative decoding" (2026) derive the geometric fan-out that such a ranking
gives.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

Candidates = Sequence[tuple[int, float]]
"""Tokens and their perturbed logits, best first."""

_DOUBT = 0.05
"""What drafts are wrong by even where they feel certain: this share of the odds falls off by half
from rank to rank."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer that verification may give, and the odds of it."""

    accepted_count: int
    next_token: int
    odds: float


def odds_of(candidates: Candidates) -> list[tuple[int, float]]:
    """The odds that the target chooses each candidate: softmax of what is known, with some
    doubt."""
    if not candidates or candidates[0][1] == -math.inf:  # then none can be chosen
        return []
    top = candidates[0][1]
    weights = [math.exp(value - top) if value > -math.inf else 0.0 for _, value in candidates]
    total = sum(weights)
    return [
        (token, (1 - _DOUBT) * weight / total + _DOUBT * 0.5 ** (rank + 1))
        for rank, ((token, _), weight) in enumerate(zip(candidates, weights, strict=True))
    ]


def likeliest_outcomes(in_flight: Sequence[int], candidates: Sequence[Candidates], count: int) -> list[Outcome]:
    """At most ``count`` outcomes, likeliest first. ``candidates`` has the draft's at each in-flight
    token and after the last."""
    outcomes: list[Outcome] = []
    survival = 1.0
    for accepted_count, row in enumerate(candidates):
        proposed = in_flight[accepted_count] if accepted_count < len(in_flight) else None
        accepted = _DOUBT * 0.5 ** len(row)  # of a proposed token that is none of the candidates
        for token, odds in odds_of(row):
            if token == proposed:
                accepted = odds
            else:
                outcomes.append(Outcome(accepted_count, token, survival * odds))
        survival *= accepted
    return heapq.nlargest(count, outcomes, key=lambda outcome: outcome.odds)
