"""The items that were ready for a step and had no part in it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Set
from enum import StrEnum
from typing import NamedTuple

from slipstream.engine.job import Job
from slipstream.engine.job_tree import JobTree
from slipstream.engine.load import WaitSummary


class Lack(StrEnum):
    """The reason why an item had no part in the last step."""

    STEP = "step"
    """There was no step since it came."""
    PLACE = "place"
    """Other items used all tokens of the step."""
    PAGES = "pages"
    """No KV pages were free for it."""


class _Wait(NamedTuple):
    lack: Lack
    since: float
    """Beginning of the first step that the item sat out, by the monotonic clock."""


class StepWaits:
    """Counts the steps that ready items sat out. The model thread records, and any thread reads."""

    def __init__(self) -> None:
        self._waiting: Mapping[Job, _Wait] = {}
        """Items without a part in the last step. Each step replaces the mapping."""
        self._step_counts: dict[str, int] = {Lack.PLACE: 0, Lack.PAGES: 0}
        self._seconds: dict[str, float] = {Lack.PLACE: 0.0, Lack.PAGES: 0.0}

    def begin_step(
        self, ready: Collection[Job], placed: Collection[Job], stepping: Collection[Job], tree: JobTree
    ) -> None:
        """Record a step that begins. The ``placed`` ones of the ``ready`` jobs have a place in it,
        the ``stepping`` ones have pages too. Jobs of the ``tree`` that have lost their pages are
        ready as well."""
        if len(stepping) == len(ready) and not tree.without_pages:
            self._waiting = {}
            return
        now, before = time.monotonic(), self._waiting
        served, unended = {*stepping}, {*tree.jobs}
        without_pages = {*tree.without_pages, *placed}
        self._waiting = {
            job: _Wait(
                Lack.PAGES if job in without_pages else Lack.PLACE,
                before[job].since if job in before else now,
            )
            for job in (*ready, *tree.without_pages)
            if job in unended and job not in served
        }

    def end_step(self, seconds: float, step_count: int) -> None:
        """Record that the step has ended, or that all ``step_count`` steps of a multi-step run
        have."""
        for lack, _ in self._waiting.values():
            self._step_counts[lack] += step_count
            self._seconds[lack] += seconds

    def summary(self, items: Set[Job]) -> WaitSummary:
        """Return which of the ``items`` in work wait, and the sums since the start."""
        waiting, now = self._waiting, time.monotonic()
        lacks = Counter(
            waiting[item].lack if item in waiting else Lack.STEP
            for item in items
            if item in waiting or item.timing.started is None
        )
        return WaitSummary(
            counts={lack.value: lacks[lack] for lack in Lack},
            step_counts=dict(self._step_counts),
            seconds=dict(self._seconds),
            oldest=max((now - wait.since for item, wait in waiting.items() if item in items), default=0.0),
        )
