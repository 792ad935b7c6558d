"""All sessions: the door of this room. A turn's task is owned here; whoever asks gets the turn's
record to read.

What is asked of a session is answered by the process that keeps it: `adopting` says which, and
takes over what is nobody's.

Cancelling a turn, deleting or expiring its session, draining and shutting down are one thing:
ending a task and awaiting it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import Protocol

from opentelemetry.context import Context

from orchestrator.errors import (
    NotReadyError,
    RequestIdReusedError,
    SessionBusyError,
    SessionMovedError,
    SessionNotFoundError,
    TurnNotFoundError,
)
from orchestrator.sessions.admission.admission import (
    Admission,
    AdmissionPermit,
    AdmissionSettings,
    AdmissionWait,
    Demand,
    releasing_unused,
)
from orchestrator.sessions.admission.principal import ANONYMOUS, Principal
from orchestrator.sessions.conversation.choices import resolved_choice
from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.conversation.session import Session, common_prefix_length
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.durability.eviction import Eviction
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord, SessionSummary
from orchestrator.sessions.durability.maintenance import Maintenance
from orchestrator.sessions.durability.payloads import (
    ToldTurn,
    TurnPayload,
    session_payload_of,
    target_of,
    told,
)
from orchestrator.sessions.durability.persistence import Persistence
from orchestrator.sessions.durability.takeover import Takeover, rebuild_session
from orchestrator.sessions.entrance.starting import Beginning
from orchestrator.sessions.turns.pair import Pair, Prompt
from orchestrator.sessions.turns.request_names import NAMELESS, RequestName, check_request_id
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn import Ending
from orchestrator.sessions.turns.turn_record import TurnRecord
from orchestrator.sessions.turns.watcher import Watcher
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import SessionRow
from orchestrator.store.store import Store
from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.telemetry.tracing import traceparent_of

log = logging.getLogger(__name__)

_NOTHING_SAID = GenerationSettings()


@dataclass(frozen=True, slots=True)
class NewSession:
    """What asks for a session. ``clock`` is what its chat template takes for now."""

    system: str | None = None
    settings: GenerationSettings = _NOTHING_SAID
    clock: datetime | None = None
    name: RequestName = NAMELESS
    caller: Principal = ANONYMOUS


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What starts a turn. ``settings`` are this turn's alone."""

    content: str
    settings: GenerationSettings = _NOTHING_SAID
    name: RequestName = NAMELESS
    caller: Principal = ANONYMOUS


@dataclass(frozen=True, slots=True)
class Generation:
    """What asks for answers without a session to keep."""

    prompt: Prompt
    settings: GenerationSettings = _NOTHING_SAID
    choice_count: int = 1
    clock: datetime | None = None
    name: RequestName = NAMELESS
    caller: Principal = ANONYMOUS


@dataclass(frozen=True, slots=True)
class SessionsLoad:
    """How busy the sessions are."""

    session_count: int
    running_count: int
    """Turns."""
    waiting_count: int
    """Messages of chats that wait for the turns before them."""
    permit_count: int
    """Turns that may run."""
    queued_count: int
    """Turns that wait for a permit."""
    not_drafting_count: int
    """Of the running turns, those whose draft is left alone because it would not pay."""


class HasWaiting(Protocol):
    """A stream whose messages may have to wait."""

    @property
    def waiting_count(self) -> int:
        """How many do."""


class Sessions:
    """Use as a context: inside it turns run, after it none is left, and what this process kept is
    anybody's."""

    def __init__(
        self,
        loaded: LoadedSessions,
        store: Store,
        ownership: Ownership,
        not_ready: Callable[[], str],
        watcher: Watcher,
        *,
        max_count: int,
        is_durable: bool = True,
        admission: AdmissionSettings | None = None,
    ) -> None:
        """``not_ready`` says what is waited for while there is no pair; the store holds at most
        ``max_count`` sessions, and ``is_durable`` if others may go on with them when this process
        has ended."""
        self._loaded = loaded
        self._store = store
        self._ownership = ownership
        self._persistence = Persistence(store, ownership.me.id, is_durable=is_durable)
        self._max_count = max_count
        self._watcher = watcher
        self._not_ready = not_ready
        self._pair: Pair | None = None
        self.admission = Admission(admission or AdmissionSettings())
        """Every turn that begins has a permit of it."""
        self.tasks = TurnTasks(self.admission.close)
        self.chats: set[HasWaiting] = set()
        """The streams that are open."""
        self._eviction = Eviction(loaded, self._persistence, self.tasks, self._there)
        self._beginning = Beginning(
            loaded, self._persistence, self._eviction, self.admission, self.tasks, watcher, self._there
        )
        self.takeover = Takeover(
            store, ownership, loaded, self.tasks, self._there, self._beginning.resume_taken_over, self._evict_moved
        )
        """Where sessions are that are not in this process's memory."""
        self._maintenance = Maintenance(
            store,
            ownership,
            loaded,
            self._persistence,
            self._eviction,
            take_over=self._take_over_running_turns,
            on_expired=watcher.session_expired,
        )

    async def __aenter__(self) -> Sessions:
        await self._ownership.join()
        await self.tasks.__aenter__()
        for loop in self._maintenance.loops():
            self.tasks.run_beside(loop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.tasks.__aexit__(kind, error, trace)
        for record in self._loaded.all():
            self._eviction.release_rounds(record)
            await self._eviction.write_turn_ends(record)
        try:
            await self._ownership.leave()
        except SlipstreamError as failure:
            log.error("%s", failure)

    @property
    def is_serving(self) -> bool:
        """Whether there is a pair."""
        return self._pair is not None

    @property
    def load(self) -> SessionsLoad:
        """As it is now. Callable from any thread."""
        running = self.tasks.turns
        return SessionsLoad(
            session_count=len(self._loaded),
            running_count=len(running),
            waiting_count=sum(chat.waiting_count for chat in list(self.chats)),
            permit_count=self.admission.permit_count,
            queued_count=self.admission.waiting_count,
            not_drafting_count=sum(turn.rests for turn in running),
        )

    @property
    def pair(self) -> Pair:
        """The pair being served. NotReadyError before the verifier has been reached."""
        if self._pair is None:
            raise NotReadyError(self._not_ready())
        return self._pair

    def _there(self) -> Pair:
        return self.pair

    async def _take_over_running_turns(self) -> None:
        if self.is_serving and not self.tasks.draining:
            await self.takeover.take_over_running_turns()

    def serve(self, pair: Pair) -> None:
        """The pair is there: turns may run."""
        self._pair = pair
        self.admission.measure(pair.rounds.capacity)

    @property
    def ttl_seconds(self) -> float:
        """Idle time after which a session expires."""
        return self._loaded.ttl_seconds

    async def create(self, new: NewSession) -> SessionRecord:
        """A new session, or the one that this request got before.

        SessionLimitError, RequestIdReusedError, NotReadyError, StoreUnavailableError;
        InvalidFieldsError for settings that no turn could be run with; SessionMovedError if another
        process has answered this request in this moment.
        """
        check_request_id(new.name.id)
        known = await self._known(new.caller, new.name)
        if known:
            return known[0]
        if new.system == "":
            raise InvalidFieldsError([FieldViolation("system", "must not be empty: leave it unset")])
        pair = self.pair
        pair.check_length(len(new.system or ""), "system")
        await pair.check(new.settings, new.caller)
        self.tasks.refuse_while_draining()
        session = Session(secrets.token_hex(8), pair.codec, new.clock or self._loaded.now(), new.system)
        now = self._loaded.now().timestamp()
        row = self._persistence.new_row(
            session, new.name, new.settings, now, system=new.system, principal=new.caller.name
        )
        record = self._record(pair, session, new.settings, now, row, new.caller)
        written = await self.tasks.surely(self._create(record, row, new.caller))
        return (await self._mine(new.name, written))[0]

    def kept(self, session_id: str, caller: Principal) -> SessionRecord:
        """Return a session of the caller's that this process has in memory: another may own it by
        now. SessionNotFoundError."""
        record = self._loaded.get(session_id)
        if record.principal != caller.name:  # in the words of one that is not there
            raise _not_there(session_id)
        return record

    async def get(self, session_id: str, caller: Principal) -> SessionRecord:
        """Return a session of the caller's that this process owns, or owned less than a lease ago.

        SessionNotFoundError; SessionMovedError; StoreUnavailableError if it cannot be known.
        """
        record = self.kept(session_id, caller)
        await self._confirm(record)
        return record

    async def _confirm(self, record: SessionRecord) -> None:
        if not self._ownership.is_sure:
            await self.takeover.confirm(record)

    async def _evict_moved(self, record: SessionRecord) -> None:
        await self._eviction.evict_session(record, Ending.MOVED)

    async def resume(self, session_id: str, stream_settings: GenerationSettings, caller: Principal) -> SessionRecord:
        """A session that a stream goes on with. What ``get`` raises, NotReadyError, and
        InvalidFieldsError as for a new one."""
        record = await self.get(session_id, caller)
        await self.pair.check(stream_settings.over(record.settings), caller)
        return await self.get(session_id, caller)  # it may be gone by now

    async def page(
        self, size: int, after: tuple[int, str] | None, caller: Principal
    ) -> tuple[list[SessionSummary], bool]:
        """At most ``size`` of the caller's sessions, last created first, those created before
        ``after``; and whether there are more."""
        rows = await self._store.page(caller.name, target_of(self.pair.target), size + 1, after)
        return [self._summary(row) for row in rows[:size]], len(rows) > size

    async def fork(
        self, session_id: str, after_turn: int | None, name: RequestName, caller: Principal
    ) -> SessionRecord:
        """A new session that is what another was after a turn; None: the last that has ended. Or
        the one that this request got.

        TurnNotFoundError for one that has not ended; what `create` raises.
        """
        check_request_id(name.id)
        known = await self._known(caller, name)
        if known:
            return known[0]
        self.tasks.refuse_while_draining()
        record = self.kept(session_id, caller)
        source = record.row
        if source is None or not record.listed:
            raise _not_there(session_id)
        await self._write_ends(record)
        ended = [stored for stored in await self._store.turns(source.id) if stored.end is not None]
        last = max((stored.begun.turn for stored in ended), default=0)
        if after_turn is not None and not 0 <= after_turn <= last:
            raise TurnNotFoundError(f"no turn {after_turn} has ended; the last that has is {last}", turn=after_turn)
        last = last if after_turn is None else after_turn
        row = self._persistence.fork_row(source, secrets.token_hex(8), name, self._loaded.now().timestamp())
        nameless = [replace(stored, begun=replace(stored.begun, request_id="")) for stored in ended]
        copied = [stored for stored in nameless if stored.begun.turn <= last]
        forked = (await rebuild_session(row, copied, self.pair)).record
        forked.row = row = self._persistence.with_counts(row, forked.session)
        try:
            written = await self.tasks.surely(self._create(forked, row, caller, like=(source, last, len(copied))))
        except SessionMovedError:
            await self._evict_moved(record)
            raise
        return (await self._mine(name, written))[0]

    async def turns(self, record: SessionRecord) -> AsyncGenerator[ToldTurn]:
        """All turns of a session that have ended and were not undone."""
        await self._write_ends(record)
        for stored in [] if record.row is None else await self._store.turns(record.row.id):
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
        """Start a message's turn, or find the one that it has started before. Waits for a permit, as
        long as whoever is ``asking`` wants it.

        SessionBusyError while another turn runs; what `Admission.acquire` raises;
        StoreUnavailableError; InvalidFieldsError and whatever else is wrong with the message.
        """
        if message.caller.name != record.principal:  # a chat's token may have become somebody else's
            raise _not_there(record.session.id)
        await self._confirm(record)
        known = self._known_turn(record, message)
        if known is not None:
            return known
        self.tasks.refuse_while_draining()
        pair, session = self.pair, record.session
        if not message.content:
            raise InvalidFieldsError([FieldViolation("content", "must not be empty")])
        settings = message.settings.over(stream_settings).over(record.settings)
        _refuse_if_busy(record, session.turn_count)
        following = session.prompt_for(message.content)
        prompt = await pair.encode(following, session.clock)
        await pair.check_structure(settings, message.caller)
        room = pair.resolve_settings(settings, len(prompt), acceptance=session.acceptance).room(len(prompt))
        fresh = len(prompt) - common_prefix_length(session.tokens, prompt)
        permits = await self.admission.acquire(Demand(message.caller, len(prompt), fresh, room), wait)

        async def begin() -> TurnRecord:
            with releasing_unused(permits):
                async with record.beginning:
                    known = self._known_turn(record, message)
                    if known is not None:
                        return known
                    self.tasks.refuse_while_draining()
                    # Whoever looks for it anew learns what became of it.
                    if self._loaded.find(session.id) is not record:
                        what = f"session {session.id} was kept elsewhere for a while, or is gone"
                        raise SessionMovedError(what, session_id=session.id)
                    _refuse_if_busy(record, following.turn_count)
                    resolved = pair.resolve_settings(settings, len(prompt), acceptance=session.acceptance)
                    try:
                        turn = await self._beginning.begin(
                            record, prompt, resolved, message.name, parent, message.content, permits[0]
                        )
                    except SessionMovedError:
                        await self._evict_moved(record)
                        raise
                    record.requests.keep(message.name, turn.turn)
                    return turn

        return await self.tasks.surely(begin())

    async def generate(self, generation: Generation, parent: Context, wait: AdmissionWait) -> list[TurnRecord]:
        """Start a turn for each answer, or find those that this request has started before. Waits
        for permits, as `send`."""
        name = generation.name
        check_request_id(name.id)
        known = await self._known_generation(generation)
        if known is not None:
            return known
        self.tasks.refuse_while_draining()
        pair, settings = self.pair, generation.settings
        clock = generation.clock or self._loaded.now()
        prompt = await pair.encode(generation.prompt, clock)
        await pair.check_structure(settings, generation.caller)
        self.tasks.refuse_while_draining()
        resolved = pair.resolve_settings(settings, len(prompt))
        room = resolved.room(len(prompt))
        demand = Demand(generation.caller, len(prompt), len(prompt), room, generation.choice_count)
        permits = await self.admission.acquire(demand, wait)
        begun: list[TurnRecord] = []
        has_left = False

        async def begin() -> list[TurnRecord]:
            with releasing_unused(permits):
                begun.extend(await self._begin_choices(generation, clock, prompt, resolved, parent, permits))
            if has_left and not name.id:
                self.abandon(begun)
            return begun

        try:
            return await self.tasks.surely(begin())
        except asyncio.CancelledError:
            has_left = True
            if not name.id:  # nobody could ask for it, and end it
                self.abandon(begun)
            raise

    async def _begin_choices(
        self,
        generation: Generation,
        clock: datetime,
        prompt: list[int],
        resolved: ResolvedTurn,
        parent: Context,
        permits: Sequence[AdmissionPermit],
    ) -> list[TurnRecord]:
        """Write a generation's turns down and run them; where its request has got others meanwhile,
        those."""
        self.tasks.refuse_while_draining()
        count, name = generation.choice_count, generation.name
        for old in self._loaded.remove_ended_generations(count):
            await self._eviction.delete_session(old)
        pair, now = self.pair, self._loaded.now().timestamp()
        records = [self._choice(generation, pair, clock, now, index) for index in range(count)]
        choices = [resolved_choice(resolved, index) for index in range(count)]
        payloads = [TurnPayload(None, choice, traceparent_of(parent)) for choice in choices]
        rows = await self._persistence.create_generation(records, target_of(pair.target), prompt, payloads)
        if rows and rows[0].id != records[0].session.id:
            return [record.turns.get(1) for record in await self._mine(name, rows)]
        turns: list[TurnRecord] = []
        for record, choice, permit in zip(records, choices, permits, strict=True):
            self._loaded.add(record)
            after = turns[0] if turns else None
            turns.append(
                self._beginning.run(record, prompt, choice, name.id, parent, permit, content=None, after=after)
            )
        return turns

    def _choice(self, generation: Generation, pair: Pair, clock: datetime, now: float, index: int) -> SessionRecord:
        """What one of a generation's turns runs in."""
        name, settings, caller = generation.name, generation.settings, generation.caller
        session_id = secrets.token_hex(8) if name.id else self._ownership.mark + secrets.token_hex(6)
        session = Session(session_id, pair.codec, clock)
        row = None
        if name.id:
            row = self._persistence.new_row(
                session, name, settings, now, principal=caller.name, choice=index, listed=False
            )
        return self._record(pair, session, settings, now, row, caller, listed=False)

    def note_refusal(self, error: Exception, parent: Context, session_id: str = "") -> None:
        """Of a message or a generation: no turn of it will be seen."""
        self._watcher.refused(error, "" if self._pair is None else self._pair.target.name, parent, session_id)

    async def turn(self, session_id: str, turn: int, caller: Principal) -> TurnRecord:
        """A turn's record. What `get` raises, TurnNotFoundError or TurnNotKeptError."""
        return (await self.get(session_id, caller)).turns.get(turn)

    async def turn_of_request(self, record: SessionRecord, request_id: str) -> int:
        """The turn that a session's message has started. TurnNotFoundError, SessionMovedError,
        StoreUnavailableError."""
        await self._confirm(record)
        turn = record.requests.answer_to(request_id)
        if turn is None:
            raise TurnNotFoundError(f"no message with request_id {request_id!r} has started a turn")
        return turn

    async def cancel(self, record: SessionRecord, turn: int) -> None:
        """End a turn, if it runs, and see its end written down.

        TurnNotFoundError or TurnNotKeptError; SessionMovedError, StoreUnavailableError: then the
        turn may go on elsewhere.
        """
        running = record.running
        if running is not None and running.record.turn == turn:
            await self.tasks.end(running, Ending.CANCELLED)
            if running.record.broken_off is not None:
                raise running.record.broken_off
        elif not record.unwritten:
            await self.takeover.confirm(record)
        await self._write_ends(record)
        record.turns.get(turn)

    async def delete(self, session_id: str, caller: Principal) -> None:
        """Take a session out, end its turn, give its pages back. SessionNotFoundError,
        SessionMovedError, StoreUnavailableError."""
        record = self.kept(session_id, caller)

        async def delete() -> None:
            try:
                await self._persistence.delete_session(record)
            except SessionMovedError:
                await self._evict_moved(record)
                raise
            await self._eviction.evict_session(record, Ending.CANCELLED)

        await self.tasks.surely(delete())

    def abandon(self, turns: Sequence[TurnRecord]) -> None:
        """Nobody can ask for these generations again: end those that still run, keep none."""
        for turn in turns:
            record = self._loaded.find(turn.started.session_id)
            if record is not None:
                self._loaded.remove(record)
                if record.running is not None:
                    record.running.end(Ending.CANCELLED)  # its pages come back when it has ended

    async def _write_ends(self, record: SessionRecord) -> None:
        """Write down which turns of a session have ended. SessionMovedError,
        StoreUnavailableError."""
        try:
            await self._persistence.write_turn_ends(record)
        except SessionMovedError:
            await self._evict_moved(record)
            raise

    async def _create(
        self, record: SessionRecord, row: SessionRow, caller: Principal, like: tuple[SessionRow, int, int] | None = None
    ) -> list[SessionRow]:
        """Write a new session down and keep it; where its request has got another before, that."""
        written = await self._store.create(
            [row], most=self._max_count, most_of_principal=caller.limits.session_count, like=like
        )
        if written[0].id == row.id:
            self._loaded.add(record)
            self._eviction.evict_longest_idle()
        return written

    def _record(
        self,
        pair: Pair,
        session: Session,
        settings: GenerationSettings,
        now: float,
        row: SessionRow | None,
        caller: Principal,
        *,
        listed: bool = True,
    ) -> SessionRecord:
        return SessionRecord(session, pair.rounds.open(session.id), settings, now, now, listed, row, caller.name)

    def _known_turn(self, record: SessionRecord, message: UserMessage) -> TurnRecord | None:
        turn = record.requests.find(message.name)
        return None if turn is None else record.turns.get(turn)

    async def _known(self, caller: Principal, name: RequestName) -> list[SessionRecord]:
        rows = await self._store.of_request(caller.name, name.id, listed=True) if name.id else []
        return await self._mine(name, rows)

    async def _known_generation(self, generation: Generation) -> list[TurnRecord] | None:
        name, principal = generation.name, generation.caller.name
        rows = await self._store.of_request(principal, name.id, listed=False) if name.id else []
        records = await self._mine(name, rows)
        turns = [record.turns.get(1) for record in records]
        undone = all(turn.ended is not None and turn.ended.error and not turn.token_count for turn in turns)
        if turns and (undone or len(turns) < generation.choice_count):  # or not all of them are kept: generated anew
            await self._store.forget_request(principal, name.id)
            for record in records:
                await self._eviction.evict_session(record, Ending.CANCELLED)
            return None
        return turns or None

    async def _mine(self, name: RequestName, rows: Sequence[SessionRow]) -> list[SessionRecord]:
        """What a request got, as this process has it in memory. RequestIdReusedError,
        SessionMovedError."""
        if rows and rows[0].fingerprint != name.fingerprint:
            raise RequestIdReusedError(f"request_id {name.id!r} came with another content before")
        records: list[SessionRecord] = []
        for row in rows:
            record = self._loaded.find(row.id)
            if record is not None and not record.is_owned_as(row):  # one of them is old
                await self.takeover.confirm(record)
            if record is not None:
                records.append(record)
        if len(records) < len(rows):
            raise SessionMovedError("another process has answered this request", session_id=rows[0].id)
        return records

    def _summary(self, row: SessionRow) -> SessionSummary:
        record = self._loaded.find(row.id)
        if record is not None and record.is_owned_as(row):
            return record.summary
        return SessionSummary(
            row.id,
            row.created,
            row.last_active,
            row.turn_count,
            row.token_count,
            row.message_count,
            row.running_turn,
            session_payload_of(row).clock,
        )


def _not_there(session_id: str) -> SessionNotFoundError:
    return SessionNotFoundError(f"there is no session {session_id!r}", session_id=session_id)


def _refuse_if_busy(record: SessionRecord, turn_count: int) -> None:
    """SessionBusyError if a turn runs, or has begun since the session had ``turn_count``."""
    session = record.session
    if record.running is not None or session.turn_count != turn_count:
        turn = session.turn_count
        raise SessionBusyError(f"session {session.id} has turn {turn} running, or had it just now", turn=turn)
