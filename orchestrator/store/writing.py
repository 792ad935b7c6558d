"""A check by writing whether sessions can be written now: a full disk still lets small writes
through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from orchestrator.errors import StoreUnavailableError
from orchestrator.store.store import Store

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class Writing:
    """Tries to write as soon as the store fails, until a write succeeds. One failure alone proves
    nothing."""

    def __init__(self, store: Store) -> None:
        self.is_possible = True
        self._store = store
        self._doubt = asyncio.Event()
        store.on_trouble(self._doubt.set)

    async def watch(self, on_changed: Callable[[], None]) -> None:
        """Run until cancelled; call ``on_changed`` whenever `is_possible` has changed."""
        while True:
            await self._doubt.wait()
            self._doubt.clear()  # a write that fails during the trial asks for another one
            is_possible = await self._try()
            if is_possible != self.is_possible:
                self.is_possible = is_possible
                on_changed()
            if not is_possible:
                self._doubt.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _try(self) -> bool:
        try:
            await self._store.try_writing()
        except StoreUnavailableError as error:
            if self.is_possible:
                log.error("no turn can begin until sessions can be written again: %s", error)
            return False
        if not self.is_possible:
            log.info("sessions can be written again")
        return True
