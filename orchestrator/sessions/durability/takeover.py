"""Sessions that are not in this process's memory: it finds their owner, or takes them over.

A process takes over a session whose owner has ended when a caller asks for it. If its turn was
running, the first process that sees it takes it over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.errors import SessionExpiredError, UnreadableError
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord
from orchestrator.sessions.durability.payloads import TurnPayload, restored, target_of, turn_payload_of
from orchestrator.sessions.durability.stored_session import StoredSession
from orchestrator.sessions.turns.pair import Pair, ServedPair
from orchestrator.sessions.turns.request_names import RequestName
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import OwnerRow, SessionRow, StoredTurn
from orchestrator.store.store import Store
from slipstream.errors import WeightsMismatchError

log = logging.getLogger(__name__)

_LARGE = 100_000
"""Characters of a stored session from which on a thread reads it: reading takes milliseconds, and
the event loop must not wait."""

_BATCH = 16
"""Sessions to take over before the store is asked again: several processes share the sessions of an
ended one."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A session that this process has taken over, with the turn that has not ended."""

    record: SessionRecord
    unfinished: StoredTurn | None
    begun: TurnPayload | None
    """The settings of that turn."""


class Takeover:
    """Finds sessions in whichever process they are."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        loaded: LoadedSessions,
        tasks: TurnTasks,
        served: ServedPair,
        on_taken_over: Callable[[Sequence[TakenOver]], None],
    ) -> None:
        """``on_taken_over`` loads the sessions that were taken over, and resumes their turns."""
        self._store = store
        self._ownership = ownership
        self._loaded = loaded
        self._tasks = tasks
        self._served = served
        self._on_taken_over = on_taken_over
        self._one_at_a_time = asyncio.Lock()

    async def locate(self, session_id: str, principal: str | None) -> OwnerRow | None:
        """Return the process that owns a principal's session; with None, any principal's.

        None if this process has it in memory from now on, or if the principal has no such session.
        SessionExpiredError; WeightsMismatchError if its tokens come from another target;
        NotReadyError.
        """
        while self._loaded.find(session_id) is None and "\0" not in session_id:
            found = await self._store.find_session(session_id)
            if found is None:
                if await self._store.has_expired(principal or "", session_id):
                    what = (
                        f"session {session_id!r} expired after {self._loaded.ttl_seconds:g} s without a turn, or without "
                        "its first one when there was no room for others"
                    )
                    raise SessionExpiredError(what, session_id=session_id)
                return await self._ownership.marked(session_id)
            row, owner = found
            if principal not in (None, row.principal):
                return None  # this process then answers as for a session that never was
            if owner is not None and owner.id != self._ownership.me.id:
                return owner
            # Cancelled half-way, the session would be owned and in no memory.
            await self._tasks.run_to_completion(self._take_over_session(row))
        return None

    async def locate_request(self, request_id: str, principal: str, *, listed: bool) -> OwnerRow | None:
        """Return the process that owns what a principal's request has created before; None if it is
        this one, or if the request has created nothing."""
        if _may_be_known(request_id):
            for row in await self._store.sessions_of_request(principal, request_id, listed=listed):
                owner = await self.locate(row.id, principal)
                if owner is not None:
                    return owner
        return None

    async def locate_fork(self, session_id: str, request_id: str, principal: str) -> OwnerRow | None:
        """Return the process that owns the fork which a principal's request has created before, or
        else the owner of the session to fork."""
        if _may_be_known(request_id) and await self._store.sessions_of_request(principal, request_id, listed=True):
            return await self.locate_request(request_id, principal, listed=True)
        return await self.locate(session_id, principal)

    async def take_over_running_turns(self) -> None:
        """Take over sessions whose turn was running when their owner ended, if this process serves.

        A session that cannot be resumed is logged, and the others are taken over.
        """
        if not self._served.is_ready or self._tasks.draining:
            return
        while rows := await self._store.sessions_without_owner(target_of(self._served.pair.target), _BATCH):
            before = len(self._loaded.all())
            for row in rows:
                if self._tasks.draining:
                    return
                try:
                    await self._tasks.run_to_completion(self._take_over_session(row))
                except (UnreadableError, WeightsMismatchError) as error:
                    log.error("session %s cannot be taken over: %s", row.id, error)
            if len(self._loaded.all()) == before:
                return

    async def _take_over_session(self, row: SessionRow) -> None:
        pair = self._served.pair
        if row.target not in ("", target_of(pair.target)):
            what = f"session {row.id} comes from other weights than {pair.target.name}'s: create another one"
            raise WeightsMismatchError(what, session_id=row.id)
        async with self._one_at_a_time:
            if self._loaded.find(row.id) is not None:
                return
            taken = await self._store.take_over_session(row, self._ownership.me.id)
            new = [(row, turns) for row, turns in taken if self._loaded.find(row.id) is None]
            self._on_taken_over([await rebuild_session(row, turns, pair) for row, turns in new])


def _may_be_known(request_id: str) -> bool:
    """Return whether a request may have created something: its request_id is one that a database
    can hold."""
    return bool(request_id) and "\0" not in request_id


async def rebuild_session(row: SessionRow, turns: Sequence[StoredTurn], pair: Pair) -> TakenOver:
    """Rebuild a session from its rows, on another thread if that takes long. UnreadableError."""
    if sum(len(stored.begun.payload) + (len(stored.end.payload) if stored.end else 0) for stored in turns) < _LARGE:
        return _rebuild_session(row, turns, pair)
    return await asyncio.to_thread(_rebuild_session, row, turns, pair)


def _rebuild_session(row: SessionRow, turns: Sequence[StoredTurn], pair: Pair) -> TakenOver:
    session, payload, records = restored(row, turns, pair.codec)
    created, active = row.created / 1e6, row.last_active / 1e6
    stored = StoredSession(row, payload.settings, created, active, row.listed, row.principal, payload.metadata)
    record = SessionRecord(session, stored, pair.rounds.open(row.id))
    for ended in records:
        record.turns.add(ended)
    for turn in turns:
        if turn.begun.request_id:
            record.requests.remember(RequestName(turn.begun.request_id, turn.begun.fingerprint), turn.begun.turn)
    unfinished = next((turn for turn in reversed(turns) if turn.end is None), None)
    return TakenOver(record, unfinished, None if unfinished is None else turn_payload_of(unfinished.begun))
