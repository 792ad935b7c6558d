"""Keeps acceptance by hour in the store, seldom and beside the turns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from orchestrator.errors import StoreUnavailableError
from orchestrator.store.acceptance import AcceptanceHistory
from orchestrator.store.acceptance_rows import AcceptanceRow, TargetChange
from orchestrator.watching.acceptance import AcceptanceTally

log = logging.getLogger(__name__)

_WRITE_SECONDS: Final = 60.0
"""Seconds from one write to the next. Less: a process that is killed loses less. More: fewer
transactions."""

_HOURS_OF_A_READ: Final = 24
"""Hours that are read at a time: their rows fit into one message."""


class AcceptanceKeeping:
    """Writes what a process has counted, and reads what all processes of a store have."""

    def __init__(
        self, tally: AcceptanceTally, history: AcceptanceHistory, clock: Callable[[], float] = time.time
    ) -> None:
        """``clock`` gives seconds since the epoch."""
        self._tally = tally
        self._history = history
        self._clock = clock

    async def run(self) -> None:
        """Write from time to time until cancelled."""
        while True:
            await asyncio.sleep(_WRITE_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Write what was counted since the last call. If the store cannot be written now, a later
        call does."""
        taken = self._tally.take()
        if not taken:
            return
        try:
            await self._history.add(self._hour, taken)
        except StoreUnavailableError as error:
            self._tally.put_back(taken)
            log.warning("acceptance by task is written later: %s", error)

    async def note_target(self, name: str, fingerprint: str) -> None:
        """Note which target is served, and warn if it is another one than before."""
        try:
            change = await self._history.note_target(self._clock(), name, fingerprint)
            changes = await self._history.target_changes()
        except StoreUnavailableError as error:
            log.warning("whether the target has changed is not known: %s", error)
            return
        self._tally.target_changed = changes[-1].since if changes else None
        if change is not None:
            log.warning(
                "the target has changed: %s has the fingerprint %s, and the target before it had %s. Less may be accepted of a "
                "draft that was trained for that one: see slipstream drift",
                name,
                fingerprint,
                change.before,
                extra={"target": fingerprint, "target_before": change.before},
            )

    async def target_changes(self) -> list[TargetChange]:
        """Return the changes of the target, in order. StoreUnavailableError."""
        return await self._history.target_changes()

    async def days(self, hour_count: int) -> AsyncGenerator[Sequence[AcceptanceRow], None]:
        """Yield the rows of the last hours, a day of them at a time, with what this process has
        counted up to now. StoreUnavailableError."""
        await self.write()
        last = self._hour
        for first in range(last - hour_count + 1, last + 1, _HOURS_OF_A_READ):
            yield await self._history.rows(first, min(last, first + _HOURS_OF_A_READ - 1))

    @property
    def _hour(self) -> int:
        return int(self._clock() // 3600)
