"""The record that a step leaves for tracing and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MOST_NOTES = 16
"""Most steps that a job remembers, an even number. More: a span shows more of them, and has more
links."""


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


class StepSample:
    """At most `MOST_NOTES` of a job's steps, spread evenly over all of them: its span shows the
    whole of a long run."""

    __slots__ = ("_distance", "_seen_count", "notes")

    def __init__(self) -> None:
        self.notes: list[StepNote] = []
        """The steps at each multiple of the distance."""
        self._distance = 1
        self._seen_count = 0

    def add(self, note: StepNote) -> None:
        """Add the next step. Every second one is dropped if there are too many."""
        if self._seen_count % self._distance == 0:
            if len(self.notes) == MOST_NOTES:
                del self.notes[1::2]
                self._distance *= 2
            self.notes.append(note)
        self._seen_count += 1


OnStep = Callable[[StepNote], None]
"""A callback for each step. The model thread calls it and waits for it."""
