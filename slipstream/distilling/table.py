"""The table of a draft's acceptance before and after."""

from __future__ import annotations

from slipstream.distilling.dataset import Dataset
from slipstream.distilling.estimate import POSITIONS, Estimate, Estimates, sampled_temperature

_FEW_TOKENS = 100
"""Tokens below which an acceptance is off by more than 0.05, as a standard error."""


def table(before: Estimates, after: Estimates, data: Dataset, temperature: float) -> str:
    """Return the acceptance by position, as text. ``temperature``: that of the traffic."""
    at = sampled_temperature(temperature)
    head = "".join(f"{position:>7}" for position in range(1, POSITIONS + 1))
    lines = [
        f"Acceptance by position, on {len(data.held_out):,} held-out sequences with {after.row_count:,} tokens.",
        "Estimated from the records: if a hint began at each token, the share of hints whose first k tokens",
        f"the target accepts. At temperature {at:g} first tokens are right within {after.error_bound:.1g}.",
        f"{'':24}{head}",
    ]
    for name, pair in (
        ("temperature 0", (before.greedy, after.greedy)),
        (f"temperature {at:g}", (before.sampled, after.sampled)),
    ):
        lines += [_line(f"{name:16}{when}", each) for when, each in zip(("before", "after"), pair, strict=True)]
    if after.row_count < _FEW_TOKENS:
        lines.append("So few tokens say little: collect more, or raise --held-out.")
    return "\n".join(lines)


def _line(name: str, estimate: Estimate) -> str:
    return f"{name:24}" + "".join(f"{share:7.3f}" for share in estimate.by_position)
