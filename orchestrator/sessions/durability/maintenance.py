"""The loops that run beside turns: they keep the ownership, write progress, take over sessions, and
let idle sessions expire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from orchestrator.errors import StoreUnavailableError
from orchestrator.sessions.durability.eviction import Eviction
from orchestrator.sessions.durability.loaded import LoadedSessions
from orchestrator.sessions.durability.persistence import Persistence
from orchestrator.sessions.durability.takeover import Takeover
from orchestrator.sessions.turns.watcher import Watcher
from orchestrator.store.ownership import Ownership
from orchestrator.store.store import Store

log = logging.getLogger(__name__)

_EXPIRY_PERIOD_SECONDS = 1.0


class Maintenance:
    """Looks after the sessions of one process."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        loaded: LoadedSessions,
        persistence: Persistence,
        eviction: Eviction,
        takeover: Takeover,
        watcher: Watcher,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._loaded = loaded
        self._persistence = persistence
        self._eviction = eviction
        self._takeover = takeover
        self._watcher = watcher

    def loops(self) -> list[Coroutine[None, None, None]]:
        """Return loops to run side by side, each until it is cancelled: a slow write to the store
        must not delay the beat."""
        return [self._expire_idle(), self._keep_ownership(), self._maintain()]

    async def _expire_idle(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_PERIOD_SECONDS)
            for record in self._loaded.idle():
                if await self._eviction.delete_session(record, expired=True):
                    log.info("session %s expired", record.session.id, extra={"session_id": record.session.id})
                    self._watcher.session_expired()

    async def _keep_ownership(self) -> None:
        while True:
            await asyncio.sleep(self._ownership.period)
            try:
                await self._ownership.beat()
                if self._ownership.has_lost:
                    await self._evict_lost()
                    self._ownership.settled()
            except StoreUnavailableError as error:
                log.error("%s", error)

    async def _maintain(self) -> None:
        """Write the progress of turns, and take over sessions without an owner."""
        while True:
            await asyncio.sleep(self._ownership.period)
            try:
                await self._write_progress()
                for record in self._loaded.all():
                    if record.stored.unwritten:
                        await self._eviction.try_to_write_turn_ends(record)
                await self._store.expire_sessions(self._loaded.ttl_seconds)
                await self._takeover.take_over_running_turns()
            except StoreUnavailableError as error:
                log.error("%s", error)
            except Exception:  # a fault of one session must not stop the loop for all others
                log.exception("maintenance of sessions failed")

    async def _write_progress(self) -> None:
        running = [(record, record.running) for record in self._loaded.all() if record.running is not None]
        moved = await self._persistence.write_progress([(record.stored, turn) for record, turn in running])
        for record, _ in running:
            if record.session.id in moved:
                await self._eviction.evict_moved_session(record)

    async def _evict_lost(self) -> None:
        """Evict what other processes own by now: they had taken this process for dead."""
        owned = await self._store.epochs_of_owner(self._ownership.me.id)
        for record in self._loaded.all():
            row = record.stored.row
            if row is not None and owned.get(row.id) != row.epoch:
                await self._eviction.evict_moved_session(record)
