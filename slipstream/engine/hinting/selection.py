"""The hint tokens that the next step verifies: the best prefix by expected tokens a second. Pure.

Candidates of all runs are sorted by survival, as DSpark's scheduler does. A step of more of them
yields more tokens and takes longer. Step times may be a staircase, so all prefixes are compared,
not only neighbours.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class Offer:
    """The best hint of one run in the next step: corrected survivals, which never rise."""

    survivals: Sequence[float]
    is_fixed: bool = False
    """True if the session asked for a fixed length: all of it is verified as long as rows are
    left."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The hint tokens that a step verifies of each offer, and the tokens a second that the step is
    expected to make."""

    counts: list[int]
    rate: float


def select(
    offers: Sequence[Offer],
    run_count: int,
    other_rows: int,
    row_limit: int,
    times: StepTimes,
    beside: float = 0.0,
) -> Selection:
    """Choose the hint tokens of a step of ``run_count`` runs and ``other_rows`` rows of prompts.

    Each run's own row comes first, so a full step verifies no hint. The rate counts the runs' own
    tokens too, and for each step ``beside`` seconds of other work.
    """
    base_rows = run_count + other_rows
    rows_left = max(0, row_limit - base_rows)
    counts = [0] * len(offers)
    expected = float(run_count)
    for index, offer in enumerate(offers):
        if offer.is_fixed:
            counts[index] = min(len(offer.survivals), rows_left)
            rows_left -= counts[index]
            base_rows += counts[index]
            expected += sum(offer.survivals[: counts[index]])
    priced = [
        [(survival, index) for survival in offer.survivals] for index, offer in enumerate(offers) if not offer.is_fixed
    ]
    best_first = list(heapq.merge(*priced, key=lambda row: -row[0]))[:rows_left]
    count, rate = best_prefix([survival for survival, _ in best_first], expected, base_rows, times, beside)
    for _, index in best_first[:count]:
        counts[index] += 1
    return Selection(counts, rate)


def best_prefix(
    values: Sequence[float], base_value: float, base_rows: int, times: StepTimes, beside: float = 0.0
) -> tuple[int, float]:
    """Return how many of ``values``, which never rise, give the highest rate together, and that
    rate: (``base_value`` and their sum) over the seconds of ``base_rows`` and their rows, and
    ``beside``. The most of equals, because a row in a stair that is paid for is free."""
    best_count, best_rate = 0, base_value / (beside + times.seconds(base_rows)) if base_rows else 0.0
    total = base_value
    for count, value in enumerate(values, 1):
        total += value
        rate = total / (beside + times.seconds(base_rows + count))
        if rate >= best_rate:
            best_count, best_rate = count, rate
    return best_count, best_rate


def equal_counts(offers: Sequence[Offer], run_count: int, least_window: int, most: int, times: StepTimes) -> list[int]:
    """Return the hint tokens of each offer: the same number, or none, for a backend whose windows
    of different lengths are forwards of their own. A window has at least ``least_window`` rows, and
    at most ``most`` hint tokens."""

    def seconds(runs: int, window: int) -> float:
        return times.seconds(runs * max(window, least_window)) if runs else 0.0

    best, best_rate = 0, run_count / seconds(run_count, 1)
    for count in range(1, 1 + min(most, max([len(offer.survivals) for offer in offers]))):
        taking = [offer for offer in offers if len(offer.survivals) >= count]
        expected = run_count + sum([sum(offer.survivals[:count]) for offer in taking])
        if count < least_window:
            taken = seconds(run_count, count + 1)
        else:
            taken = seconds(len(taking), count + 1) + seconds(run_count - len(taking), 1)
        if expected / taken >= best_rate:
            best, best_rate = count, expected / taken
    return [best if len(offer.survivals) >= best else 0 for offer in offers]
