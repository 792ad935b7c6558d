"""Counts of draft tokens by task: for metrics since the process began, and for the store since they
were last written. Pure.

::

    round --> TurnAcceptance.add --> turn's end: AcceptanceTally.end_turn --> totals  --> metrics
                                                                          --> take    --> the store
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from orchestrator.store.acceptance import MOST_ROWS
from orchestrator.store.acceptance_rows import OTHER, AcceptanceKey
from orchestrator.watching.task_names import TaskNames
from slipstream.ratio_sums import NOTHING, RatioSums

_MOST_DRAFTS = 16
"""Drafts by which a process counts; further ones are `OTHER`. Operators bring them, not callers."""


def temperature_class(temperature: float) -> int:
    """Return the class of a temperature, as `AcceptanceKey.temperature` has it."""
    return min(4, math.ceil(2 * temperature))


class TurnAcceptance:
    """The draft tokens of one turn, by who made them."""

    __slots__ = ("_by_draft", "principal", "target", "task", "temperature")

    def __init__(self, task: str, principal: str, target: str, temperature: float) -> None:
        """``target`` is the fingerprint of its weights."""
        self.task, self.principal, self.target = task, principal, target
        self.temperature = temperature_class(temperature)
        self._by_draft: dict[str, tuple[int, int]] = {}

    def add(self, draft: str, drafted: int, accepted: int) -> None:
        """Count a round's draft tokens, of which so many were accepted."""
        before = self._by_draft.get(draft, (0, 0))
        self._by_draft[draft] = before[0] + drafted, before[1] + accepted

    @property
    def by_draft(self) -> Mapping[str, tuple[int, int]]:
        """Draft tokens and accepted ones, by draft."""
        return self._by_draft


class AcceptanceTally:
    """Counts of all turns of this process. Turns end on one thread; any thread may read
    `totals`."""

    def __init__(self) -> None:
        self.target_changed: float | None = None
        """When the target last changed, in seconds since the epoch; None if it never did."""
        self._tasks = TaskNames(self._forget)
        self._drafts: set[str] = set()
        self._totals: dict[tuple[str, str], tuple[int, int]] = {}
        self._unwritten: dict[AcceptanceKey, RatioSums] = {}
        self._lock = threading.Lock()

    @property
    def totals(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Draft tokens and accepted ones since the process began, by task and draft."""
        with self._lock:
            return dict(self._totals)

    def end_turn(self, turn: TurnAcceptance) -> None:
        """Count a turn that has ended."""
        if not turn.by_draft:
            return
        task = self._tasks.name(turn.task, turn.principal)
        with self._lock:
            for draft, (drafted, accepted) in turn.by_draft.items():
                self._count(AcceptanceKey(task, turn.target, self._draft(draft), turn.temperature), drafted, accepted)

    def take(self) -> dict[AcceptanceKey, RatioSums]:
        """Return the counts that are not written yet, and keep them no more."""
        with self._lock:
            taken, self._unwritten = self._unwritten, {}
        return taken

    def put_back(self, taken: Mapping[AcceptanceKey, RatioSums]) -> None:
        """Keep counts that could not be written."""
        with self._lock:
            for key, counts in taken.items():
                self._keep(key, counts)

    def _count(self, key: AcceptanceKey, drafted: int, accepted: int) -> None:
        name = key.task, key.draft
        before = self._totals.get(name, (0, 0))
        self._totals[name] = before[0] + drafted, before[1] + accepted
        self._keep(key, RatioSums.of_turn(accepted, drafted))

    def _keep(self, key: AcceptanceKey, counts: RatioSums) -> None:
        if key not in self._unwritten and len(self._unwritten) >= MOST_ROWS:  # the store is away for long
            key = key._replace(task=OTHER, draft=OTHER)
        self._unwritten[key] = self._unwritten.get(key, NOTHING).plus(counts)

    def _draft(self, draft: str) -> str:
        if draft not in self._drafts and len(self._drafts) >= _MOST_DRAFTS:
            return OTHER
        self._drafts.add(draft)
        return draft

    def _forget(self, task: str) -> None:
        """End the series of a task that has lost its place. Its tokens stay in the store's rows."""
        with self._lock:
            for name in [each for each in self._totals if each[0] == task]:
                del self._totals[name]
