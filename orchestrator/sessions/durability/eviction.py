"""Sessions that leave this process's memory: evicted, deleted, expired, or owned by another
process."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from orchestrator.errors import RequestIdReusedError, SessionMovedError, StoreUnavailableError
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord
from orchestrator.sessions.durability.persistence import Persistence
from orchestrator.sessions.turns.pair import ServedPair
from orchestrator.sessions.turns.request_names import RequestName
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn_record import Ending
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import SessionRow
from orchestrator.store.store import Store

log = logging.getLogger(__name__)


class Eviction:
    """Removes sessions from memory and releases their pages and handles on the peers."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        loaded: LoadedSessions,
        persistence: Persistence,
        tasks: TurnTasks,
        served: ServedPair,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._loaded = loaded
        self._persistence = persistence
        self._tasks = tasks
        self._served = served

    def remove_idle_session(self, record: SessionRecord) -> None:
        """Remove a session without a running turn from memory."""
        self._loaded.remove(record)
        self._served.release(record.rounds)

    async def evict_session(self, record: SessionRecord, why: Ending) -> None:
        """Remove a session from memory, and cancel its turn if one runs."""
        self._loaded.remove(record)
        if record.running is not None:
            await self._tasks.cancel_turn(record.running, why)
            record.running = None  # or a caller would wait for its end for ever
        self._served.release(record.rounds)

    async def evict_moved_session(self, record: SessionRecord) -> None:
        """Remove a session that another process owns from memory."""
        await self.evict_session(record, Ending.MOVED)

    def evict_longest_idle(self) -> None:
        """Evict the longest-idle sessions when more than the limit are in memory."""
        for record in self._loaded.evictable():
            self.remove_idle_session(record)

    async def delete_session(self, record: SessionRecord, *, expired: bool = False) -> bool:
        """Delete a session without a running turn. Returns False if it cannot be deleted now."""
        try:
            await self._persistence.delete_session(record.stored, expired=expired)
        except StoreUnavailableError as error:
            log.error("session %s cannot be deleted now: %s", record.session.id, error)
            return False
        except SessionMovedError:  # its owner decides
            self.remove_idle_session(record)
            return False
        self.remove_idle_session(record)
        return True

    async def write_turn_ends(self, record: SessionRecord) -> None:
        """Write the ends of turns that are not written yet, for a caller that needs them written.

        SessionMovedError, and the session leaves memory, if another process owns it;
        StoreUnavailableError.
        """
        try:
            await self._persistence.write_turn_ends(record.stored, record.session)
        except SessionMovedError:
            await self.evict_moved_session(record)
            raise

    async def try_to_write_turn_ends(self, record: SessionRecord) -> None:
        """Write the ends of turns that are not written yet, if that can be done now. Evicts the
        session if another process owns it."""
        try:
            await self.write_turn_ends(record)
        except SessionMovedError:
            pass
        except StoreUnavailableError as error:
            log.error("session %s cannot be written now: %s", record.session.id, error)

    async def check_ownership(self, record: SessionRecord) -> None:
        """Check that this process owns a session, in the store if the last beat is too old.

        SessionMovedError; StoreUnavailableError.
        """
        if not self._ownership.is_sure:
            await self.confirm_ownership(record)

    async def confirm_ownership(self, record: SessionRecord) -> None:
        """Read in the store that this process owns a session.

        SessionMovedError, and the session leaves memory, if it does not; StoreUnavailableError.
        """
        row = record.stored.row
        if row is None:
            return
        found = await self._store.find_session(row.id)
        if found is None or not record.stored.is_owned_as(found[0]):
            await self.evict_moved_session(record)
            what = f"session {row.id} was deleted, or another process owns it"
            raise SessionMovedError(what, session_id=row.id)

    async def loaded_of_request(self, name: RequestName, rows: Sequence[SessionRow]) -> list[SessionRecord]:
        """Return the sessions that a request has created, which this process has in memory.

        RequestIdReusedError; SessionMovedError if another process has one of them.
        """
        if rows and rows[0].fingerprint != name.fingerprint:
            raise RequestIdReusedError(f"request_id {name.id!r} came with another content before")
        records: list[SessionRecord] = []
        for row in rows:
            record = self._loaded.find(row.id)
            if record is not None and not record.stored.is_owned_as(row):  # the row or the record is old
                await self.confirm_ownership(record)
            if record is not None:
                records.append(record)
        if len(records) < len(rows):
            raise SessionMovedError("another process has answered this request", session_id=rows[0].id)
        return records
