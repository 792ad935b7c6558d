"""Ratios of two servers, from one round to the next. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.bench.report import Report

FIGURES: Mapping[str, Callable[[Report], float]] = {
    "request_throughput": lambda report: report.requests_per_second,
    "output_throughput": lambda report: report.tokens_per_second,
    "ttft_p50": lambda report: report.ttft.p50,
    "ttft_p99": lambda report: report.ttft.p99,
    "itl_p50": lambda report: report.itl.p50,
    "itl_p99": lambda report: report.itl.p99,
    "tpot_p50": lambda report: report.tpot.p50,
    "tpot_p99": lambda report: report.tpot.p99,
    "e2el_p50": lambda report: report.e2el.p50,
    "e2el_p99": lambda report: report.e2el.p99,
}
"""Figures that are compared, by their names in the JSON."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The second server's figure divided by the first one's, over the rounds."""

    median: float
    least: float
    most: float


def ratios(first: Sequence[Report], second: Sequence[Report]) -> dict[str, Ratio]:
    """Return the ratio of each figure that both servers have in every round."""
    found = {}
    for name, figure in FIGURES.items():
        pairs = [(figure(a), figure(b)) for a, b in zip(first, second, strict=True)]
        if pairs and all(a and b for a, b in pairs):
            quotients = [b / a for a, b in pairs]
            found[name] = Ratio(statistics.median(quotients), min(quotients), max(quotients))
    return found
