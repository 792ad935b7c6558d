"""The load of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WaitSummary:
    """Items that wait for a step, and what waiting has cost since the start. Each mapping has the
    reasons of the waits as keys."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Items that wait now."""
    step_counts: Mapping[str, int] = field(default_factory=dict)
    """Steps that ready items sat out, summed over items."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of these steps, summed over items."""
    oldest: float = 0.0
    """Seconds for which the item has sat out steps that has waited longest."""

    @property
    def count(self) -> int:
        """Items that wait now, for any reason."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Load:
    """A snapshot: jobs, sequences and pages. ``page_count == free + held + cached``."""

    running_count: int = 0
    """Items that took part in the last step, or that wait for a hint."""
    waiting_count: int = 0
    """Items that were ready and had no part in the last step, or that have not begun."""
    paused_count: int = 0
    """Runs and guesses that wait for their caller."""
    sequence_count: int = 0
    page_count: int = 0
    free_page_count: int = 0
    held_page_count: int = 0
    cached_page_count: int = 0
    page_size: int = 0
    kv_byte_count: int = 0
    step_count: int = 0
    preempted_count: int = 0
    guess_count: int = 0
    """Guesses of the target's heads since the start, each after one run."""
    guess_seconds: float = 0.0
    """Seconds that they took."""
    unfinished_count: int = 0
    """Rounds without an answer yet, including those whose structure is being compiled."""
    waits: WaitSummary = field(default_factory=WaitSummary)

    @property
    def sat_out_count(self) -> int:
        """Steps that ready items sat out since the start, summed over items."""
        return sum(self.waits.step_counts.values())
