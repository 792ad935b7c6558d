"""Acceptance by hour in the store. All orchestrators of a store add to the same rows.

The rows are bounded: in hours that are kept, in tasks of an hour, and in rows of an hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from orchestrator.store.acceptance_rows import OTHER, AcceptanceKey, AcceptanceRow, TargetChange
from orchestrator.store.acceptance_tables import COUNTS, KEYS
from orchestrator.store.database import Database, Transaction
from slipstream.ratio_sums import RatioSums

KEPT_HOURS: Final = 5 * 7 * 24
"""Hours with rows that are kept: five weeks, or more where some have none. They are counted and not
dated, since a process with a wrong clock must not delete the others' rows."""
MOST_TASKS: Final = 128
"""Tasks of an hour besides `OTHER`, first come. Further ones are counted there. Each process names
32 at a time, so a caller that floods one of them with names does not take the others' places."""
MOST_ROWS: Final = 512
"""Rows of an hour. Tokens that would need another one are counted as `OTHER` in task and draft."""
_MOST_TARGETS = 64

_MARKS = ", ".join("?" for _ in (*AcceptanceKey._fields, *COUNTS, "hour"))
_ADDED = ", ".join(f"{name} = acceptance.{name} + excluded.{name}" for name in COUNTS)
_ADD = f"INSERT INTO acceptance VALUES ({_MARKS}) ON CONFLICT ({KEYS}) DO UPDATE SET {_ADDED}"

_KEPT_BEFORE_ANOTHER = f"SELECT DISTINCT hour FROM acceptance ORDER BY hour DESC LIMIT {KEPT_HOURS - 1}"
_DELETE_OLD = f"DELETE FROM acceptance WHERE hour NOT IN ({_KEPT_BEFORE_ANOTHER})"


class AcceptanceHistory:
    """Acceptance by hour. Any method raises StoreUnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, hour: int, counts: Mapping[AcceptanceKey, RatioSums]) -> None:
        """Add counts to an hour's rows, and delete rows that are too old."""

        def work(t: Transaction) -> None:
            found = t.rows("SELECT task, target, draft, temperature FROM acceptance WHERE hour = ?", (hour,))
            known = {AcceptanceKey(*row) for row in found}
            if not known:
                t.execute(_DELETE_OLD)
            for key in sorted(counts):  # in one order, so that no two processes wait for each other
                kept = _bounded(key, known)
                known.add(kept)
                t.execute(_ADD, (hour, *kept, *_numbers(counts[key])))

        await self._database.run(work)

    async def rows(self, first: int, last: int) -> list[AcceptanceRow]:
        """Return the rows of the hours from ``first`` to ``last``, in order."""
        statement = f"SELECT * FROM acceptance WHERE hour >= ? AND hour <= ? ORDER BY {KEYS}"
        found = await self._database.run(lambda t: t.rows(statement, (first, last)), reads=True)
        return [_row_of(row) for row in found]

    async def note_target(self, now: float, name: str, target: str) -> TargetChange | None:
        """Note that a target is served. Return the change if it is not the one of before."""

        def work(t: Transaction) -> TargetChange | None:
            last = t.row("SELECT since, target FROM targets ORDER BY since DESC LIMIT 1")
            if last is not None and last[1] == target:
                return None
            since = now if last is None else max(now, last[0] + 1e-3)  # clocks of processes differ
            t.execute("INSERT INTO targets VALUES (?, ?, ?)", (since, name, target))
            oldest = f"SELECT since FROM targets ORDER BY since DESC LIMIT {_MOST_TARGETS}"
            t.execute(f"DELETE FROM targets WHERE since NOT IN ({oldest})")
            return None if last is None else TargetChange(since, name, target, last[1])

        return await self._database.run(work)

    async def target_changes(self) -> list[TargetChange]:
        """Return the changes of the target that are remembered, in order."""
        statement = "SELECT since, name, target FROM targets ORDER BY since"
        found = await self._database.run(lambda t: t.rows(statement), reads=True)
        changes = [TargetChange(row[0], row[1], row[2], before[2]) for before, row in pairwise(found)]
        return [change for change in changes if change.target != change.before]  # two may note one change


def _bounded(key: AcceptanceKey, known: set[AcceptanceKey]) -> AcceptanceKey:
    """Return the key under which tokens are counted in an hour whose rows are ``known``."""
    if key in known:
        return key
    tasks = {each.task for each in known} - {OTHER}
    if key.task not in tasks and len(tasks) >= MOST_TASKS:
        key = key._replace(task=OTHER)
    if key in known or len(known) < MOST_ROWS:
        return key
    return key._replace(task=OTHER, draft=OTHER)


def _row_of(found: tuple[Any, ...]) -> AcceptanceRow:
    hour, task, target, draft, temperature, turns, drafted, accepted, drafted_squared, products, accepted_squared = (
        found
    )
    counts = RatioSums(accepted, drafted, accepted_squared, products, drafted_squared, turns)
    return AcceptanceRow(hour, AcceptanceKey(task, target, draft, temperature), counts)


def _numbers(counts: RatioSums) -> tuple[float, ...]:
    """Return sums in the order of `COUNTS`."""
    squares = counts.denominator_squares, counts.products, counts.numerator_squares
    return counts.count, counts.denominator, counts.numerator, *squares
