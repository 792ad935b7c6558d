"""Totals of what a process has collected, for its metrics. It needs no numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CollectTotals:
    """Totals of one process. Any thread may read them."""

    row_count: int = 0
    """Rows in shards."""
    dropped_row_count: int = 0
    """Rows that were seen and are in no shard: collecting was too slow for them, or has failed."""
    byte_count: int = 0
    """Bytes of the shards that were written."""
    is_collecting: bool = False
    """False if collecting is off, or has stopped because of an error."""
