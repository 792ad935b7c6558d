"""The entrance to this package: all calls about sessions, messages and generations arrive here.

A session is answered for by the process that owns it: `Takeover` finds that process, and takes over
sessions without an owner. To cancel a turn, to delete or expire its session, to drain and to shut
down are one mechanism: a task is cancelled and awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType

from opentelemetry.context import Context

from orchestrator.errors import SessionMovedError, TurnNotFoundError, TurnNotKeptError
from orchestrator.sessions.admission.admission import Admission
from orchestrator.sessions.admission.demand import AdmissionSettings, AdmissionWait
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.durability.eviction import Eviction
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord, SessionSummary, session_not_found
from orchestrator.sessions.durability.maintenance import Maintenance
from orchestrator.sessions.durability.payloads import (
    AskedTurn,
    ToldTurn,
    row_with_metadata,
    session_payload_of,
    target_of,
    told,
    told_record,
    turn_payload_of,
)
from orchestrator.sessions.durability.persistence import Persistence
from orchestrator.sessions.durability.takeover import TakenOver, Takeover
from orchestrator.sessions.entrance.creation import Creation
from orchestrator.sessions.entrance.generations import Generations
from orchestrator.sessions.entrance.messages import Messages
from orchestrator.sessions.entrance.requests import Fork, Generation, HasWaiting, NewSession, SessionsLoad, UserMessage
from orchestrator.sessions.entrance.starting import TurnStarter
from orchestrator.sessions.turns.pair import Pair, ServedPair
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn_record import Ending, TurnRecord
from orchestrator.sessions.turns.watcher import Watcher
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import SessionRow, StoredTurn
from orchestrator.store.store import Store
from slipstream.errors import SlipstreamError

log = logging.getLogger(__name__)


class Sessions:
    """A context in which turns run. After it none is left, and other processes may take over the
    sessions."""

    def __init__(
        self,
        loaded: LoadedSessions,
        store: Store,
        ownership: Ownership,
        describe_wait: Callable[[], str],
        watcher: Watcher,
        *,
        max_count: int,
        is_durable: bool = True,
        admission: AdmissionSettings | None = None,
    ) -> None:
        """``describe_wait`` returns what the process waits for while there is no pair.

        The store holds at most ``max_count`` sessions. With ``is_durable`` other processes may
        resume them when this process has ended.
        """
        self._loaded = loaded
        self._store = store
        self._ownership = ownership
        self._watcher = watcher
        self._served = ServedPair(describe_wait)
        self._persistence = Persistence(store, is_durable=is_durable)
        self.admission = Admission(admission or AdmissionSettings())
        """Issues a permit to every turn that begins."""
        self.tasks = TurnTasks(self.admission.close)
        self.chats: set[HasWaiting] = set()
        """The chat streams that are open."""
        self._eviction = Eviction(store, ownership, loaded, self._persistence, self.tasks, self._served)
        self._starter = TurnStarter(loaded, self._persistence, self.admission, self.tasks, watcher, self._served)
        self._creation = Creation(
            store, ownership, loaded, self._eviction, self.tasks, self._served, max_count=max_count
        )
        self._messages = Messages(
            loaded, self._persistence, self._eviction, self.admission, self.tasks, self._starter, self._served
        )
        self._generations = Generations(
            store,
            ownership,
            loaded,
            self._persistence,
            self._eviction,
            self.admission,
            self.tasks,
            self._starter,
            self._served,
        )
        self.takeover = Takeover(store, ownership, loaded, self.tasks, self._served, self._load_taken_over)
        """Finds sessions that are not in this process's memory."""
        self._maintenance = Maintenance(
            store, ownership, loaded, self._persistence, self._eviction, self.takeover, watcher
        )

    async def __aenter__(self) -> Sessions:
        await self._ownership.join()
        await self.tasks.__aenter__()
        for loop in self._maintenance.loops():
            self.tasks.run_in_background(loop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.tasks.__aexit__(kind, error, trace)
        for record in self._loaded.all():
            self._served.release(record.rounds)
            await self._eviction.try_to_write_turn_ends(record)
        try:
            await self._ownership.leave()
        except SlipstreamError as failure:
            log.error("%s", failure)

    @property
    def is_serving(self) -> bool:
        """True if there is a pair."""
        return self._served.is_ready

    @property
    def load(self) -> SessionsLoad:
        """The load now. Callable from any thread."""
        running = self.tasks.turns
        return SessionsLoad(
            session_count=len(self._loaded),
            running_count=len(running),
            waiting_count=sum(chat.waiting_count for chat in list(self.chats)),
            permit_count=self.admission.permit_count,
            queued_count=self.admission.waiting_count,
            not_drafting_count=sum(turn.is_not_drafting for turn in running),
        )

    @property
    def pair(self) -> Pair:
        """The pair that is served. NotReadyError before the verifier has been reached."""
        return self._served.pair

    def serve(self, pair: Pair) -> None:
        """Serve a pair: turns may run from now on."""
        self._served.serve(pair)
        self.admission.measure(pair.rounds.capacity)

    @property
    def ttl_seconds(self) -> float:
        """Idle seconds after which a session expires."""
        return self._loaded.ttl_seconds

    async def create(self, new: NewSession) -> SessionRecord:
        """Create a session, or return the one that this request has created before.

        SessionLimitError; RequestIdReusedError; NotReadyError; StoreUnavailableError;
        InvalidFieldsError for settings that no turn could run with; SessionMovedError if another
        process has answered this request just now.
        """
        return await self._creation.create(new)

    def get_loaded(self, session_id: str, caller: Principal) -> SessionRecord:
        """Return a session of the caller's from memory, though another process may own it by now.
        SessionNotFoundError."""
        record = self._loaded.get(session_id)
        if record.stored.principal != caller.name:  # in the words of one that does not exist
            raise session_not_found(session_id)
        return record

    async def get(self, session_id: str, caller: Principal) -> SessionRecord:
        """Return a session of the caller's that this process owns, or owned less than a lease ago.

        SessionNotFoundError; SessionMovedError; StoreUnavailableError if the owner is not known.
        """
        record = self.get_loaded(session_id, caller)
        await self._eviction.check_ownership(record)
        return record

    async def resume(self, session_id: str, stream_settings: GenerationSettings, caller: Principal) -> SessionRecord:
        """Return a session that a stream continues.

        Raises what `get` raises; NotReadyError; InvalidFieldsError for settings that no turn could
        run with.
        """
        record = await self.get(session_id, caller)
        await self.pair.check(stream_settings.over(record.stored.settings), caller)
        self._refuse_if_moved(record)
        return await self.get(session_id, caller)  # it may be gone by now

    async def page(
        self, size: int, after: tuple[int, str] | None, caller: Principal
    ) -> tuple[list[SessionSummary], bool]:
        """Return at most ``size`` of the caller's sessions, last created first, and whether there
        are more.

        All of them were created before ``after``.
        """
        rows = await self._store.list_sessions(caller.name, target_of(self.pair.target), size + 1, after)
        return [self._summary(row) for row in rows[:size]], len(rows) > size

    async def fork(self, session_id: str, asked: Fork, caller: Principal) -> SessionRecord:
        """Create a session that begins as another was after a turn.

        Returns the fork that this request has created before, if it has. TurnNotFoundError for a
        turn that has not ended; raises what `create` raises.
        """
        loaded = self._loaded.find(session_id)
        known = await self._creation.known_fork(asked.name, caller)
        if known is not None:
            return known
        self.tasks.refuse_while_draining()
        if loaded is not None:
            self._refuse_if_moved(loaded)
        return await self._creation.fork(self.get_loaded(session_id, caller), asked, caller)

    async def turns(self, record: SessionRecord) -> AsyncGenerator[ToldTurn]:
        """Yield all turns of a session that have ended and were not undone."""
        await self._eviction.write_turn_ends(record)
        row = record.stored.row
        for stored in [] if row is None else await self._store.list_turns(row.id):
            if stored.end is not None and stored.end.tokens:
                yield await asyncio.to_thread(told, stored)

    async def send(
        self,
        record: SessionRecord,
        message: UserMessage,
        stream_settings: GenerationSettings,
        parent: Context,
        wait: AdmissionWait,
    ) -> TurnRecord:
        """Start a message's turn, or return the one that it has started before.

        Waits for an admission permit. SessionBusyError while another turn runs; what
        `Admission.acquire` raises; StoreUnavailableError; SessionMovedError; InvalidFieldsError and
        others for a message that no turn can run with.
        """
        return await self._messages.send(record, message, stream_settings, parent, wait)

    async def generate(self, generation: Generation, parent: Context, wait: AdmissionWait) -> list[TurnRecord]:
        """Start a turn for each answer, or return those that this request has started before.

        Waits for admission permits, and raises what `send` raises.
        """
        return await self._generations.generate(generation, parent, wait)

    def abandon(self, turns: Sequence[TurnRecord]) -> None:
        """Cancel and drop generations that no caller can ask for again."""
        self._generations.abandon(turns)

    def note_refusal(self, error: Exception, parent: Context, session_id: str = "") -> None:
        """Tell the watcher that a message or a generation was refused: it has no turn."""
        self._watcher.refused(error, self._served.model_name, parent, session_id)

    async def turn(self, session_id: str, turn: int, caller: Principal) -> TurnRecord:
        """Return a turn's record, from the store if it was too long ago. Raises what `get` raises;
        TurnNotFoundError; UnreadableError; TurnNotKeptError if it is not stored."""
        record = await self.get(session_id, caller)
        try:
            return record.turns.get(turn)
        except TurnNotKeptError:
            stored = await self._stored_turn(record, turn)
            if stored is None or stored.end is None:
                raise
        return await asyncio.to_thread(told_record, session_id, stored)

    async def asked(self, session_id: str, turn: int, caller: Principal) -> AskedTurn:
        """Return what a turn was asked. Raises what `get` raises; TurnNotFoundError;
        UnreadableError."""
        record = await self.get(session_id, caller)
        stored = await self._stored_turn(record, turn)
        if stored is None or record.stored.row is None:
            raise TurnNotFoundError(f"session {session_id} has no turn {turn} that is stored", turn=turn)
        payload, is_running = turn_payload_of(stored.begun), record.running is not None and record.running.turn == turn
        return AskedTurn(
            turn, stored.begun.request_id, session_payload_of(record.stored.row), payload, is_running=is_running
        )

    async def _stored_turn(self, record: SessionRecord, turn: int) -> StoredTurn | None:
        row = record.stored.row
        return None if row is None else await self._store.find_turn(row.id, turn)

    async def turn_of_request(self, record: SessionRecord, request_id: str) -> int:
        """Return the turn that a session's message has started. TurnNotFoundError;
        SessionMovedError; StoreUnavailableError."""
        await self._eviction.check_ownership(record)
        turn = record.requests.answer_to(request_id)
        if turn is None:
            raise TurnNotFoundError(f"no message with request_id {request_id!r} has started a turn")
        return turn

    async def cancel(self, record: SessionRecord, turn: int) -> None:
        """Cancel a turn, if it runs, and see its end written.

        TurnNotFoundError; TurnNotKeptError; SessionMovedError, StoreUnavailableError: then the turn
        may go on in another process.
        """
        running = record.running
        if running is not None and running.turn == turn:
            await self.tasks.cancel_turn(running, Ending.CANCELLED)
            if running.broken_off is not None:
                raise running.broken_off
        elif not record.stored.unwritten:
            await self._eviction.confirm_ownership(record)
        await self._eviction.write_turn_ends(record)
        record.turns.get(turn)

    async def update(self, session_id: str, metadata: Mapping[str, str], caller: Principal) -> SessionRecord:
        """Change a session's metadata. Raises what `get` raises; UnreadableError."""
        record = await self.get(session_id, caller)
        row = record.stored.row
        if row is None or not record.stored.listed:
            raise session_not_found(session_id)
        writing = self._persistence.write_metadata(record.stored, row_with_metadata(row, metadata), metadata)
        try:
            await self.tasks.run_to_completion(writing)
        except SessionMovedError:
            await self._eviction.evict_moved_session(record)
            raise
        return record

    async def delete(self, session_id: str, caller: Principal) -> None:
        """Delete a session, cancel its turn, and release its pages. SessionNotFoundError;
        SessionMovedError; StoreUnavailableError."""
        record = self.get_loaded(session_id, caller)

        async def delete() -> None:
            try:
                await self._persistence.delete_session(record.stored)
            except SessionMovedError:
                await self._eviction.evict_moved_session(record)
                raise
            await self._eviction.evict_session(record, Ending.CANCELLED)

        await self.tasks.run_to_completion(delete())

    def _refuse_if_moved(self, record: SessionRecord) -> None:
        """Raise SessionMovedError if a session has left memory: another process took it over."""
        if self._loaded.find(record.session.id) is None:
            raise SessionMovedError("another process owns the session by now", session_id=record.session.id)

    def _load_taken_over(self, sessions: Sequence[TakenOver]) -> None:
        """Load sessions that this process has taken over, and resume the turns that have not
        ended."""
        first: TurnRecord | None = None
        for each in sessions:
            self._loaded.add(each.record)
            if each.unfinished is not None and each.begun is not None:
                turn = self._starter.resume_turn(each.record, each.unfinished, each.begun, first)
                first = first or turn
        self._eviction.evict_longest_idle()

    def _summary(self, row: SessionRow) -> SessionSummary:
        record = self._loaded.find(row.id)
        if record is not None and record.stored.is_owned_as(row):
            return record.summary
        payload = session_payload_of(row)
        return SessionSummary(
            row.id,
            row.created,
            row.last_active,
            row.turn_count,
            row.token_count,
            row.message_count,
            row.running_turn,
            payload.clock,
            payload.metadata,
        )
