"""Sessions that are not in this process's memory: whose they are, and taking over what is nobody's.

A session whose owner has ended is taken over where it is asked for; one whose turn was running, by
whoever sees it first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from orchestrator.errors import SessionExpiredError, SessionMovedError, UnreadableError
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord
from orchestrator.sessions.durability.payloads import TurnPayload, restored, target_of, turn_payload_of
from orchestrator.sessions.turns.pair import Pair
from orchestrator.sessions.turns.request_names import RequestName
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import OwnerRow, SessionRow, StoredTurn
from orchestrator.store.store import Store
from slipstream.errors import WeightsMismatchError

log = logging.getLogger(__name__)

_LARGE = 100_000
"""Characters of what is written of a session: reading it takes milliseconds, which others are not
to wait for."""

_TOGETHER = 16
"""Sessions taken over before it is looked whether others are as fast: several processes share what
one has left."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A session that was taken over, and the turn of it that nobody has finished."""

    record: SessionRecord
    unfinished: StoredTurn | None
    begun: TurnPayload | None
    """What that turn is run under."""


class Takeover:
    """Finds sessions wherever they are."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        loaded: LoadedSessions,
        tasks: TurnTasks,
        pair: Callable[[], Pair],
        on_taken_over: Callable[[Sequence[TakenOver]], None],
        on_moved: Callable[[SessionRecord], Awaitable[None]],
    ) -> None:
        """``pair`` raises NotReadyError while there is none. ``on_taken_over`` is told what has to be
        kept here from now on, and ``on_moved`` of a session that another process owns."""
        self._store = store
        self._ownership = ownership
        self._loaded = loaded
        self._tasks = tasks
        self._pair = pair
        self._on_taken_over = on_taken_over
        self._on_moved = on_moved
        self._one_at_a_time = asyncio.Lock()

    async def confirm(self, record: SessionRecord) -> None:
        """Read in the store that this process still owns a session. SessionMovedError, and the
        session leaves memory, if it does not; StoreUnavailableError."""
        if record.row is None:
            return
        found = await self._store.session(record.row.id)
        if found is None or not record.is_owned_as(found[0]):
            await self._on_moved(record)
            what = f"session {record.session.id} is kept elsewhere by now, or gone"
            raise SessionMovedError(what, session_id=record.session.id)

    async def locate(self, session_id: str, principal: str | None) -> OwnerRow | None:
        """The process that keeps a principal's session, or with None anybody's; None if it is this
        one, which has it in memory from now on, or if the principal has no such session.

        SessionExpiredError; WeightsMismatchError if its tokens come from another target;
        NotReadyError.
        """
        while self._loaded.find(session_id) is None and "\0" not in session_id:
            found = await self._store.session(session_id)
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
                return None  # and here it is said to be nowhere, as of one that never was
            if owner is not None and owner.id != self._ownership.me.id:
                return owner
            await self._tasks.surely(self._take_over_session(row))  # owned and not in memory it would be nobody's
        return None

    async def locate_request(self, request_id: str, principal: str, *, listed: bool) -> OwnerRow | None:
        """The process that keeps what a principal's request has created before; None if it is this
        one, or if it has created nothing."""
        if _may_be_known(request_id):
            for row in await self._store.of_request(principal, request_id, listed=listed):
                owner = await self.locate(row.id, principal)
                if owner is not None:
                    return owner
        return None

    async def locate_fork(self, session_id: str, request_id: str, principal: str) -> OwnerRow | None:
        """The process that keeps what a principal's request to fork a session has created before,
        or else that session's."""
        if _may_be_known(request_id) and await self._store.of_request(principal, request_id, listed=True):
            return await self.locate_request(request_id, principal, listed=True)
        return await self.locate(session_id, principal)

    async def take_over_running_turns(self) -> None:
        """Go on with the turns of owners that have ended. One that cannot be gone on with is in
        nobody's way."""
        while rows := await self._store.ownerless(target_of(self._pair().target), _TOGETHER):
            before = len(self._loaded.all())
            for row in rows:
                if self._tasks.draining:
                    return
                try:
                    await self._tasks.surely(self._take_over_session(row))
                except (UnreadableError, WeightsMismatchError) as error:
                    log.error("session %s: %s", row.id, error)
            if len(self._loaded.all()) == before:
                return

    async def _take_over_session(self, row: SessionRow) -> None:
        pair = self._pair()
        if row.target not in ("", target_of(pair.target)):
            what = f"session {row.id} comes from other weights than {pair.target.name}'s: create another one"
            raise WeightsMismatchError(what, session_id=row.id)
        async with self._one_at_a_time:
            if self._loaded.find(row.id) is not None:
                return
            taken = await self._store.take_over_session(row, self._ownership.me.id)
            new = [(row, turns) for row, turns in taken if self._loaded.find(row.id) is None]
            taken_over = [await rebuild_session(row, turns, pair) for row, turns in new]
            self._on_taken_over(taken_over)


def _may_be_known(request_id: str) -> bool:
    """Whether a request may have created something: it has a name, and one that a database could
    keep."""
    return bool(request_id) and "\0" not in request_id


async def rebuild_session(row: SessionRow, turns: Sequence[StoredTurn], pair: Pair) -> TakenOver:
    """Rebuild a session from its rows, on another thread if that takes long. UnreadableError."""
    if sum(len(stored.begun.payload) + (len(stored.end.payload) if stored.end else 0) for stored in turns) < _LARGE:
        return _rebuild_session(row, turns, pair)
    return await asyncio.to_thread(_rebuild_session, row, turns, pair)


def _rebuild_session(row: SessionRow, turns: Sequence[StoredTurn], pair: Pair) -> TakenOver:
    """A session from what is written of it. UnreadableError."""
    session, said, records = restored(row, turns, pair.codec)
    record = SessionRecord(
        session,
        pair.rounds.open(row.id),
        said.settings,
        row.created / 1e6,
        row.last_active / 1e6,
        row.listed,
        row,
        row.principal,
    )
    for ended in records:
        record.turns.add(ended)
    for stored in turns:
        if stored.begun.request_id:
            record.requests.keep(RequestName(stored.begun.request_id, stored.begun.fingerprint), stored.begun.turn)
    unfinished = next((stored for stored in reversed(turns) if stored.end is None), None)
    return TakenOver(record, unfinished, None if unfinished is None else turn_payload_of(unfinished.begun))
