"""What goes on beside turns for as long as there are any: staying an owner, writing down how far
they are, taking over what others have left, and letting sessions expire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from orchestrator.errors import StoreUnavailableError
from orchestrator.sessions.durability.eviction import Eviction
from orchestrator.sessions.durability.loaded import LoadedSessions
from orchestrator.sessions.durability.persistence import Persistence
from orchestrator.sessions.turns.turn import Ending
from orchestrator.store.ownership import Ownership
from orchestrator.store.store import Store

log = logging.getLogger(__name__)

_EXPIRY_PERIOD_SECONDS = 1.0


class Maintenance:
    """Looks after the sessions of one process. Each of ``loops`` runs until it is cancelled."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        loaded: LoadedSessions,
        persistence: Persistence,
        eviction: Eviction,
        *,
        take_over: Callable[[], Coroutine[None, None, None]],
        on_expired: Callable[[], None],
    ) -> None:
        """``take_over`` takes over what others have left, ``on_expired`` is told of each session."""
        self._store = store
        self._ownership = ownership
        self._loaded = loaded
        self._persistence = persistence
        self._eviction = eviction
        self._take_over = take_over
        self._on_expired = on_expired

    def loops(self) -> list[Coroutine[None, None, None]]:
        """To be run beside one another: a store that is slow to write must not cost the
        ownership."""
        return [self._expire_idle(), self._keep_ownership(), self._maintain()]

    async def _expire_idle(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_PERIOD_SECONDS)
            for record in self._loaded.idle():
                if await self._eviction.delete_session(record, expired=True):
                    log.info("session %s expired", record.session.id, extra={"session_id": record.session.id})
                    self._on_expired()

    async def _keep_ownership(self) -> None:
        """Stay an owner."""
        while True:
            await asyncio.sleep(self._ownership.period)
            try:
                await self._ownership.beat()
                if self._ownership.has_lost:
                    await self._drop_lost()
                    self._ownership.settled()
            except StoreUnavailableError as error:
                log.error("%s", error)

    async def _maintain(self) -> None:
        """Write down how far turns are, and take over what others have left."""
        while True:
            await asyncio.sleep(self._ownership.period)
            try:
                running = [record for record in self._loaded.all() if record.running is not None]
                for record in await self._persistence.write_progress(running):
                    await self._eviction.evict_session(record, Ending.MOVED)
                for record in self._loaded.all():
                    if record.unwritten:
                        await self._eviction.write_turn_ends(record)
                await self._store.expire(self._loaded.ttl_seconds)
                await self._take_over()
            except StoreUnavailableError as error:
                log.error("%s", error)
            except Exception:  # what is wrong with one session is not to end all others
                log.exception("looking after sessions")

    async def _drop_lost(self) -> None:
        """Others had taken this process for dead: what they have by now is not its own."""
        owned = await self._store.owned(self._ownership.me.id)
        for record in self._loaded.all():
            if record.row is not None and owned.get(record.row.id) != record.row.epoch:
                await self._eviction.evict_session(record, Ending.MOVED)
