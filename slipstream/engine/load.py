"""The load of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """A snapshot: jobs, sequences and pages. ``page_count == free + held + cached``."""

    running_count: int = 0
    waiting_count: int = 0
    sequence_count: int = 0
    page_count: int = 0
    free_page_count: int = 0
    held_page_count: int = 0
    cached_page_count: int = 0
    page_size: int = 0
    kv_byte_count: int = 0
    step_count: int = 0
    preempted_count: int = 0
    unfinished_count: int = 0
    """Rounds without an answer yet, including those whose structure is being compiled."""
