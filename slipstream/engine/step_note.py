"""The record that a step leaves for tracing and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class StepNote:
    """One forward, or the steps of one multi-step run. ``started`` is in seconds of the monotonic
    clock."""

    started: float
    seconds: float
    token_count: int
    item_count: int
    step_count: int
    labels: tuple[str, ...]
    """Labels of the jobs in it that have one."""
    shown: object = None
    """State that the reader of the note may attach."""


OnStep = Callable[[StepNote], None]
"""A callback for each step. The model thread calls it and waits for it."""
