"""Rows of acceptance by hour. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from slipstream.ratio_sums import RatioSums

OTHER: Final = "other"
"""The task of tokens whose own task has no row of its own."""


class AcceptanceKey(NamedTuple):
    """The properties by which draft tokens are counted."""

    task: str
    target: str
    """Fingerprint of the target's weights."""
    draft: str
    """Fingerprint of the draft's weights; of hints without a draft the name of their source."""
    temperature: int
    """Class of the temperature: 0 is greedy, 1 up to 0.5, 2 up to 1, 3 up to 1.5, 4 above."""


class AcceptanceRow(NamedTuple):
    """Counts of one hour, which is given in hours since the epoch."""

    hour: int
    key: AcceptanceKey
    counts: RatioSums
    """Accepted over drafted tokens, of turns."""


class TargetChange(NamedTuple):
    """A target that was served after another one."""

    since: float
    """When a process first served it, in seconds since the epoch."""
    name: str
    target: str
    before: str
    """Fingerprint of the target before it."""
