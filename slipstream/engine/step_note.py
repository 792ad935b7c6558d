"""What a step leaves behind to be looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class StepNote:
    """One forward, or several in one go. ``started`` is of the monotonic clock, in seconds."""

    started: float
    seconds: float
    token_count: int
    item_count: int
    step_count: int
    labels: tuple[str, ...]
    """Of the jobs in it that have one."""
    shown: object = None
    """For whoever looks at it."""


OnStep = Callable[[StepNote], None]
"""Told of each step on the model thread, which waits for it."""
