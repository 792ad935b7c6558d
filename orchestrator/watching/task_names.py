"""The bounded set of tasks by which a process counts. Pure.

Callers name their tasks, so a hostile one can name millions. A task keeps its place while it is
used. A newcomer gets a free place, or that of a task that was idle for long. If there is none, it
gets a place of the principal that has the most of them, provided that this is fair.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orchestrator.store.acceptance_rows import OTHER

MOST_PLACES: Final = 32
"""Tasks that have a place at a time."""

IDLE_SECONDS: Final = 3600.0
"""Time after which an unused task may lose its place. Less: a task that is used seldom is counted
as `OTHER` more often. More: after a flood of names, new tasks wait longer."""


@dataclass(slots=True)
class _Place:
    principal: str
    used: float


class TaskNames:
    """The tasks that have a place, by name."""

    def __init__(self, on_left: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """``on_left`` is called with a task that has lost its place."""
        self._places: dict[str, _Place] = {}
        """By task, the one that was used last is the last."""
        self._on_left = on_left
        self._clock = clock

    def name(self, task: str, principal: str) -> str:
        """Return the name that a principal's task is counted by: its own, or `OTHER`."""
        if task == OTHER:
            return OTHER
        place = self._places.pop(task, None)
        if place is None:
            if len(self._places) >= MOST_PLACES and not self._make_room(principal):
                return OTHER
            place = _Place(principal, 0.0)
        place.used = self._clock()
        self._places[task] = place
        return task

    def _make_room(self, principal: str) -> bool:
        """Take a place from the task that was idle for longest, or from the principal with the
        most places if it has two more than this one. Returns False if neither may be taken."""
        oldest, place = next(iter(self._places.items()))
        if self._clock() - place.used < IDLE_SECONDS:
            held = Counter(each.principal for each in self._places.values())
            richest, most = held.most_common(1)[0]
            if most < held[principal] + 2:
                return False
            oldest = next(task for task, each in self._places.items() if each.principal == richest)
        del self._places[oldest]
        self._on_left(oldest)
        return True
