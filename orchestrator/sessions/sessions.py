"""All sessions: the door of this room. A turn's task is owned here; whoever asks gets the turn's record to read.

What is asked of a session is answered by the process that keeps it: `adopting` says which, and takes over what is nobody's.

Cancelling a turn, deleting or expiring its session, draining and shutting down are one thing: ending a task and awaiting it.
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
    StoreUnavailableError,
    TurnNotFoundError,
)
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.admission import Admission, AdmissionSettings, Asking, Place, Wish, given_back
from orchestrator.sessions.adopting import Adopted, Adopting, rebuilt_beside
from orchestrator.sessions.choices import resolved_choice
from orchestrator.sessions.keeper import Keeper, KeptTurn
from orchestrator.sessions.loaded import LoadedSessions, SessionRecord, SessionSummary
from orchestrator.sessions.pair import Pair, Prompt
from orchestrator.sessions.principal import ANYBODY, Principal
from orchestrator.sessions.requests import NAMELESS, RequestName, check_request_id
from orchestrator.sessions.resolving import ResolvedTurn
from orchestrator.sessions.session import Session, common_prefix_length
from orchestrator.sessions.settings import GenerationSettings
from orchestrator.sessions.stored import (
    ToldTurn,
    TurnPayload,
    resumable,
    session_payload_of,
    target_of,
    tokens_of,
    told,
)
from orchestrator.sessions.turn import Ending, Turn
from orchestrator.sessions.turn_record import TurnEnded, TurnRecord, TurnStarted
from orchestrator.sessions.turn_tasks import TurnTasks
from orchestrator.sessions.turn_watch import TurnBegun, Watcher
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import SessionRow, StoredTurn
from orchestrator.store.store import Store
from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.telemetry.tracing import context_of, traceparent_of

log = logging.getLogger(__name__)

_TIDYING_PERIOD_SECONDS = 1.0
_NOTHING_SAID = GenerationSettings()


@dataclass(frozen=True, slots=True)
class NewSession:
    """What asks for a session. ``clock`` is what its chat template takes for now."""

    system: str | None = None
    settings: GenerationSettings = _NOTHING_SAID
    clock: datetime | None = None
    name: RequestName = NAMELESS
    caller: Principal = ANYBODY


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What starts a turn. ``settings`` are this turn's alone."""

    content: str
    settings: GenerationSettings = _NOTHING_SAID
    name: RequestName = NAMELESS
    caller: Principal = ANYBODY


@dataclass(frozen=True, slots=True)
class Generation:
    """What asks for answers without a session to keep."""

    prompt: Prompt
    settings: GenerationSettings = _NOTHING_SAID
    choice_count: int = 1
    clock: datetime | None = None
    name: RequestName = NAMELESS
    caller: Principal = ANYBODY


@dataclass(frozen=True, slots=True)
class SessionsLoad:
    """How busy the sessions are."""

    session_count: int
    running_count: int
    """Turns."""
    waiting_count: int
    """Messages of chats that wait for the turns before them."""
    place_count: int
    """Turns that may run."""
    queued_count: int
    """Turns that wait for a place."""
    not_drafting_count: int
    """Of the running turns, those whose draft is left alone because it would not pay."""


class HasWaiting(Protocol):
    """A stream whose messages may have to wait."""

    @property
    def waiting_count(self) -> int:
        """How many do."""


class Sessions:
    """Use as a context: inside it turns run, after it none is left, and what this process kept is anybody's."""

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
        """``not_ready`` says what is waited for while there is no pair; the store holds at most ``max_count`` sessions, and
        ``is_durable`` if others may go on with them when this process has ended."""
        self._loaded = loaded
        self._store = store
        self._ownership = ownership
        self._keeper = Keeper(store, ownership.me.id, is_durable=is_durable)
        self._max_count = max_count
        self._watcher = watcher
        self._not_ready = not_ready
        self._pair: Pair | None = None
        self._spent: SessionRounds | None = (
            None  # in place of an ended generation's: there are thousands, and theirs are large
        )
        self.admission = Admission(admission or AdmissionSettings())
        """Every turn that begins has a place of it."""
        self.tasks = TurnTasks(self.admission.close)
        self.chats: set[HasWaiting] = set()
        """The streams that are open."""
        self.elsewhere = Adopting(store, ownership, loaded, self.tasks, lambda: self.pair, self._take_over)
        """Where sessions are that are not in this process's memory."""

    async def __aenter__(self) -> Sessions:
        await self._ownership.join()
        await self.tasks.__aenter__()
        self.tasks.run_beside(self._expire())
        self.tasks.run_beside(self._live())
        self.tasks.run_beside(self._tend())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.tasks.__aexit__(kind, error, trace)
        for record in self._loaded.all():
            self._release(record)
            await self._write_ends(record)
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
            place_count=self.admission.place_count,
            queued_count=self.admission.waiting_count,
            not_drafting_count=sum(turn.rests for turn in running),
        )

    @property
    def pair(self) -> Pair:
        """The pair being served. NotReadyError before the verifier has been reached."""
        if self._pair is None:
            raise NotReadyError(self._not_ready())
        return self._pair

    def serve(self, pair: Pair) -> None:
        """The pair is there: turns may run."""
        self._pair = pair
        self._spent = pair.rounds.open("")
        self.admission.measure(pair.rounds.capacity)

    @property
    def ttl_seconds(self) -> float:
        """Idle time after which a session expires."""
        return self._loaded.ttl_seconds

    async def create(self, new: NewSession) -> SessionRecord:
        """A new session, or the one that this request got before.

        SessionLimitError, RequestIdReusedError, NotReadyError, StoreUnavailableError; InvalidFieldsError for settings that no
        turn could be run with; SessionMovedError if another process has answered this request in this moment.
        """
        check_request_id(new.name.id)
        known = await self._known(new.caller, new.name)
        if known:
            return known[0]
        if new.system == "":
            raise InvalidFieldsError([FieldViolation("system", "must not be empty: leave it unset")])
        pair = self.pair
        pair.check_length(len(new.system or ""), "system")
        await pair.check(new.settings)
        self.tasks.refuse_while_draining()
        session = Session(secrets.token_hex(8), pair.codec, new.clock or self._loaded.now(), new.system)
        now = self._loaded.now().timestamp()
        row = self._keeper.new_row(session, new.name, new.settings, now, system=new.system, principal=new.caller.name)
        record = self._record(pair, session, new.settings, now, row, new.caller)
        written = await self.tasks.surely(self._create(record, row, new.caller))
        return self._mine(new.name, written)[0]

    def get(self, session_id: str, caller: Principal) -> SessionRecord:
        """One of the caller's that this process keeps. SessionNotFoundError."""
        record = self._loaded.get(session_id)
        if record.principal != caller.name:  # in the words of one that is not there
            raise _not_there(session_id)
        return record

    async def resume(self, session_id: str, stream_settings: GenerationSettings, caller: Principal) -> SessionRecord:
        """A session that a stream goes on with. What ``get`` raises, NotReadyError, and InvalidFieldsError as for a new one."""
        record = self.get(session_id, caller)
        await self.pair.check(stream_settings.over(record.settings))
        return self.get(session_id, caller)  # it may be gone by now

    async def page(
        self, size: int, after: tuple[int, str] | None, caller: Principal
    ) -> tuple[list[SessionSummary], bool]:
        """At most ``size`` of the caller's sessions, last created first, those created before ``after``; and whether there are
        more."""
        rows = await self._store.page(caller.name, target_of(self.pair.target), size + 1, after)
        return [self._summary(row) for row in rows[:size]], len(rows) > size

    async def fork(
        self, session_id: str, after_turn: int | None, name: RequestName, caller: Principal
    ) -> SessionRecord:
        """A new session that is what another was after a turn; None: the last that has ended. Or the one that this request got.

        TurnNotFoundError for one that has not ended; what `create` raises.
        """
        check_request_id(name.id)
        known = await self._known(caller, name)
        if known:
            return known[0]
        self.tasks.refuse_while_draining()
        record = self.get(session_id, caller)
        source = record.row
        if source is None or not record.listed:
            raise _not_there(session_id)
        await self._keeper.write_ends(record)
        ended = [stored for stored in await self._store.turns(source.id) if stored.end is not None]
        last = max((stored.begun.turn for stored in ended), default=0)
        if after_turn is not None and not 0 <= after_turn <= last:
            raise TurnNotFoundError(f"no turn {after_turn} has ended; the last that has is {last}", turn=after_turn)
        last = last if after_turn is None else after_turn
        row = self._keeper.fork_row(source, secrets.token_hex(8), name, self._loaded.now().timestamp())
        nameless = [replace(stored, begun=replace(stored.begun, request_id="")) for stored in ended]
        copied = [stored for stored in nameless if stored.begun.turn <= last]
        forked = (await rebuilt_beside(row, copied, self.pair)).record
        forked.row = row = self._keeper.counted(row, forked.session)
        written = await self.tasks.surely(self._create(forked, row, caller, like=(source.id, last, len(copied))))
        return self._mine(name, written)[0]

    async def turns(self, record: SessionRecord) -> AsyncGenerator[ToldTurn]:
        """All turns of a session that have ended and were not undone."""
        await self._keeper.write_ends(record)
        for stored in [] if record.row is None else await self._store.turns(record.row.id):
            if stored.end is not None and stored.end.tokens:
                yield await asyncio.to_thread(told, stored)

    async def send(
        self,
        record: SessionRecord,
        message: UserMessage,
        stream_settings: GenerationSettings,
        parent: Context,
        asking: Asking,
    ) -> TurnRecord:
        """Start a message's turn, or find the one that it has started before. Waits for a place, as long as whoever is
        ``asking`` wants it.

        SessionBusyError while another turn runs; what `Admission.enter` raises; StoreUnavailableError; InvalidFieldsError and
        whatever else is wrong with the message.
        """
        if message.caller.name != record.principal:  # a chat's token may have become somebody else's
            raise _not_there(record.session.id)
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
        await pair.check_structure(settings)
        room = pair.resolve(settings, len(prompt), acceptance=session.acceptance).room(len(prompt))
        fresh = len(prompt) - common_prefix_length(session.tokens, prompt)
        places = await self.admission.enter(Wish(message.caller, len(prompt), fresh, room), asking)

        async def begin() -> TurnRecord:
            with given_back(places):
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
                    resolved = pair.resolve(settings, len(prompt), acceptance=session.acceptance)
                    try:
                        turn = await self._begin(
                            record, prompt, resolved, message.name, parent, message.content, places[0]
                        )
                    except SessionMovedError:
                        await self._drop(record, Ending.MOVED)
                        raise
                    record.requests.keep(message.name, turn.turn)
                    return turn

        return await self.tasks.surely(begin())

    async def generate(self, generation: Generation, parent: Context, asking: Asking) -> list[TurnRecord]:
        """Start a turn for each answer, or find those that this request has started before. Waits for places, as `send`."""
        name = generation.name
        check_request_id(name.id)
        known = await self._known_generation(generation)
        if known is not None:
            return known
        self.tasks.refuse_while_draining()
        pair, settings = self.pair, generation.settings
        clock = generation.clock or self._loaded.now()
        prompt = await pair.encode(generation.prompt, clock)
        await pair.check_structure(settings)
        self.tasks.refuse_while_draining()
        resolved = pair.resolve(settings, len(prompt))
        room = resolved.room(len(prompt))
        wish = Wish(generation.caller, len(prompt), len(prompt), room, generation.choice_count)
        places = await self.admission.enter(wish, asking)
        begun: list[TurnRecord] = []
        has_left = False

        async def begin() -> list[TurnRecord]:
            with given_back(places):
                begun.extend(await begin_all())
            if has_left and not name.id:
                self.abandon(begun)
            return begun

        async def begin_all() -> list[TurnRecord]:
            self.tasks.refuse_while_draining()
            for old in self._loaded.make_room(generation.choice_count):
                await self._forget(old)
            now = self._loaded.now().timestamp()
            records = []
            for choice in range(generation.choice_count):
                session_id = secrets.token_hex(8) if name.id else self._ownership.mark + secrets.token_hex(6)
                session = Session(session_id, pair.codec, clock)
                row = None
                if name.id:
                    row = self._keeper.new_row(
                        session, name, settings, now, principal=generation.caller.name, choice=choice, listed=False
                    )
                records.append(self._record(pair, session, settings, now, row, generation.caller, listed=False))
            choices = [resolved_choice(resolved, index) for index in range(len(records))]
            payloads = [TurnPayload(None, choice, traceparent_of(parent)) for choice in choices]
            rows = await self._keeper.create_running(records, target_of(pair.target), prompt, payloads)
            if rows and rows[0].id != records[0].session.id:
                return [record.turns.get(1) for record in self._mine(name, rows)]
            turns: list[TurnRecord] = []
            for record, choice_terms, place in zip(records, choices, places, strict=True):
                self._loaded.add(record)
                after = turns[0] if turns else None  # the others find the prompt's pages in the prefix cache
                turns.append(self._run(record, prompt, choice_terms, name.id, parent, place, content=None, after=after))
            return turns

        try:
            return await self.tasks.surely(begin())
        except asyncio.CancelledError:
            has_left = True
            if not name.id:  # nobody could ask for it, and end it
                self.abandon(begun)
            raise

    def note_refusal(self, error: Exception, parent: Context, session_id: str = "") -> None:
        """Of a message or a generation: no turn of it will be seen."""
        self._watcher.refused(error, "" if self._pair is None else self._pair.target.name, parent, session_id)

    def turn(self, session_id: str, turn: int, caller: Principal) -> TurnRecord:
        """A turn's record. SessionNotFoundError, TurnNotFoundError or TurnNotKeptError."""
        return self.get(session_id, caller).turns.get(turn)

    def turn_of_request(self, record: SessionRecord, request_id: str) -> int:
        """The turn that a session's message has started. TurnNotFoundError."""
        turn = record.requests.answer_to(request_id)
        if turn is None:
            raise TurnNotFoundError(f"no message with request_id {request_id!r} has started a turn")
        return turn

    async def cancel(self, record: SessionRecord, turn: int) -> None:
        """End a turn, if it runs, and see it ended. TurnNotFoundError or TurnNotKeptError."""
        record.turns.get(turn)
        if record.running is not None and record.running.record.turn == turn:
            await self.tasks.end(record.running, Ending.CANCELLED)

    async def delete(self, session_id: str, caller: Principal) -> None:
        """Take a session out, end its turn, give its pages back. SessionNotFoundError, StoreUnavailableError."""
        record = self.get(session_id, caller)

        async def delete() -> None:
            await self._keeper.delete(record)
            await self._drop(record, Ending.CANCELLED)

        await self.tasks.surely(delete())

    def abandon(self, turns: Sequence[TurnRecord]) -> None:
        """Nobody can ask for these generations again: end those that still run, keep none."""
        for turn in turns:
            record = self._loaded.find(turn.started.session_id)
            if record is not None:
                self._loaded.remove(record)
                if record.running is not None:
                    record.running.end(Ending.CANCELLED)  # its pages come back when it has ended

    async def _create(
        self, record: SessionRecord, row: SessionRow, caller: Principal, like: tuple[str, int, int] | None = None
    ) -> list[SessionRow]:
        """Write a new session down and keep it; where its request has got another before, that."""
        written = await self._store.create(
            [row], most=self._max_count, most_of_principal=caller.limits.session_count, like=like
        )
        if written[0].id == row.id:
            self._loaded.add(record)
            self._spare_memory()
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

    async def _begin(
        self,
        record: SessionRecord,
        prompt: list[int],
        resolved: ResolvedTurn,
        name: RequestName,
        parent: Context,
        content: str,
        place: Place,
    ) -> TurnRecord:
        """Write a message's turn down and run it."""
        self._loaded.touch(record)
        payload = TurnPayload(content, resolved, traceparent_of(parent))
        await self._keeper.begin(record, target_of(self.pair.target), prompt, payload, name)
        return self._run(record, prompt, resolved, name.id, parent, place, content=content)

    def _run(
        self,
        record: SessionRecord,
        prompt: list[int],
        resolved: ResolvedTurn,
        request_id: str,
        parent: Context,
        place: Place,
        *,
        content: str | None,
        after: TurnRecord | None = None,
        said: Sequence[int] = (),
    ) -> TurnRecord:
        """Run a turn that is written down, of which these tokens have been ``said`` already."""
        pair, session = self.pair, record.session
        shared = common_prefix_length(session.tokens, prompt)
        rule = resolved.terms.rule
        answer = session.begin_turn(list(prompt), rule, resolved.limits, content)
        pair.rounds.begin_turn(record.rounds, shared, recompute=resolved.wants_prompt_logprobs)
        started = TurnStarted(session.id, request_id, rule.seed, len(prompt))
        turn_record = TurnRecord(session.turn_count, started, tells_origins=resolved.tells_origins)
        if said:
            turn_record.add(answer.commit(said), ())
        record.noted_count = turn_record.token_count
        shown = content if content is not None else session.codec.decode(prompt) if self._watcher.shows_text else None
        begun = TurnBegun(
            pair.target.name,
            session.id,
            record.principal,
            session.turn_count,
            resolved,
            record.window,
            parent,
            record.traced,
            shown,
        )
        watch = self._watcher.begin_turn(begun)
        keeper = KeptTurn(
            self._keeper,
            record,
            turn_record,
            writes_ahead=rule.draws_ratios,
            touch=self._loaded.touch,
            on_ended=lambda ended: self._ended(record, turn_record, ended),
            on_moved=lambda: self._lose(record),
        )
        turn = Turn(
            session,
            answer,
            turn_record,
            resolved,
            pair.rounds,
            record.rounds,
            principal=record.principal,
            watch=watch,
            after=after,
            keeper=keeper,
            place=place,
        )
        record.running, record.traced = turn, watch.trace_context
        self.tasks.begin(turn, lambda: place.leave(turn_record.token_count))
        place.is_taken = True
        record.turns.add(turn_record)
        return turn_record

    def _ended(self, record: SessionRecord, turn: TurnRecord, ended: TurnEnded) -> None:
        record.running = None
        if ended.error is not None and not ended.generated_token_count:  # undone: the same request may try again
            record.requests.forget(turn.started.request_id)
        record.turns.trim()
        if not record.listed:  # what is left to keep is the turn's record
            self._release(record)
            record.session.forget()
            record.rounds = self._spent or record.rounds

    def _take_over(self, adopted: Sequence[Adopted]) -> None:
        """Keep sessions that were nobody's, and go on with the turns that nobody has finished."""
        first: TurnRecord | None = None
        for each in adopted:
            record = each.record
            self._loaded.add(record)
            if each.unfinished is not None and each.begun is not None:
                log.info("going on with turn %d of session %s", each.unfinished.begun.turn, record.session.id)
                turn = self._go_on(record, each.unfinished, each.begun, first)
                first = first or turn
        self._spare_memory()

    def _go_on(
        self, record: SessionRecord, stored: StoredTurn, begun: TurnPayload, after: TurnRecord | None
    ) -> TurnRecord:
        pair, session = self.pair, record.session
        session.turn_count = stored.begun.turn - 1
        prompt = session.prompt_of(stored.begun.shared_count, tokens_of(stored.begun.prompt))
        resolved = resumable(begun.resolved, pair.limits, draft_fits=pair.mismatch is None)
        whose = Principal(record.principal)  # its limits are not known here, and it had its place
        place = self.admission.take_over(Wish(whose, len(prompt), len(prompt), resolved.room(len(prompt))))
        with given_back([place]):
            turn = self._run(
                record,
                prompt,
                resolved,
                stored.begun.request_id,
                context_of(begun.traceparent),
                place,
                content=begun.content,
                after=after,
                said=tokens_of(stored.tokens),
            )
        if stored.tokens and not resolved.tells_tokens_only and record.running is not None:
            record.running.end(Ending.CUT)  # what was told beside those tokens is nowhere
        return turn

    def _known_turn(self, record: SessionRecord, message: UserMessage) -> TurnRecord | None:
        turn = record.requests.find(message.name)
        return None if turn is None else record.turns.get(turn)

    async def _known(self, caller: Principal, name: RequestName) -> list[SessionRecord]:
        rows = await self._store.of_request(caller.name, name.id, listed=True) if name.id else []
        return self._mine(name, rows)

    async def _known_generation(self, generation: Generation) -> list[TurnRecord] | None:
        name, principal = generation.name, generation.caller.name
        rows = await self._store.of_request(principal, name.id, listed=False) if name.id else []
        records = self._mine(name, rows)
        turns = [record.turns.get(1) for record in records]
        undone = all(turn.ended is not None and turn.ended.error and not turn.token_count for turn in turns)
        if turns and (undone or len(turns) < generation.choice_count):  # or not all of them are kept: generated anew
            await self._store.forget_request(principal, name.id)
            for record in records:
                await self._drop(record, Ending.CANCELLED)
            return None
        return turns or None

    def _mine(self, name: RequestName, rows: Sequence[SessionRow]) -> list[SessionRecord]:
        """What a request got, as this process has it in memory. RequestIdReusedError, SessionMovedError."""
        if rows and rows[0].fingerprint != name.fingerprint:
            raise RequestIdReusedError(f"request_id {name.id!r} came with another content before")
        records = [record for row in rows if (record := self._loaded.find(row.id)) is not None]
        if len(records) < len(rows):
            raise SessionMovedError("another process has answered this request", session_id=rows[0].id)
        return records

    def _summary(self, row: SessionRow) -> SessionSummary:
        record = self._loaded.find(row.id)
        if record is not None:
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

    def _release(self, record: SessionRecord) -> None:
        if self._pair is not None:
            self._pair.rounds.release(record.rounds)

    async def _drop(self, record: SessionRecord, why: Ending) -> None:
        """Keep a session no more, whatever runs in it."""
        self._loaded.remove(record)
        if record.running is not None:
            await self.tasks.end(record.running, why)
            record.running = None  # nobody waits for its end who would wait for ever
        self._release(record)

    def _spare_memory(self) -> None:
        """What others have made in the store gave way to, or has rested for longest, need not be in memory too."""
        for record in self._loaded.surplus():
            self._lose(record)

    def _lose(self, record: SessionRecord) -> None:
        """A session of which nothing runs is another's by now, or gone."""
        self._loaded.remove(record)
        self._release(record)

    async def _write_ends(self, record: SessionRecord) -> None:
        """What could not be written before."""
        try:
            await self._keeper.write_ends(record)
        except SessionMovedError:
            await self._drop(record, Ending.MOVED)
        except StoreUnavailableError as error:
            log.error("session %s: %s", record.session.id, error)

    async def _forget(self, record: SessionRecord, *, expired: bool = False) -> bool:
        """Have no trace left of a session. False if that cannot be done now."""
        try:
            await self._keeper.delete(record, expired=expired)
        except StoreUnavailableError as error:
            log.error("session %s: %s", record.session.id, error)
            return False
        self._lose(record)
        return True

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_TIDYING_PERIOD_SECONDS)
            for record in self._loaded.idle():
                if await self._forget(record, expired=True):
                    log.info("session %s expired", record.session.id, extra={"session_id": record.session.id})
                    self._watcher.session_expired()

    async def _live(self) -> None:
        """Stay an owner."""
        is_sure = True
        while True:
            await asyncio.sleep(self._ownership.period)
            try:
                is_sure = await self._ownership.beat() and is_sure
                if not is_sure:
                    await self._drop_lost()
                    is_sure = True
            except StoreUnavailableError as error:
                log.error("%s", error)

    async def _tend(self) -> None:
        """Write down how far turns are, and take over what others have left."""
        while True:
            await asyncio.sleep(self._ownership.period)
            try:
                running = [record for record in self._loaded.all() if record.running is not None]
                for record in await self._keeper.note_progress(running):
                    await self._drop(record, Ending.MOVED)
                for record in self._loaded.all():
                    if record.unwritten:
                        await self._write_ends(record)
                await self._store.expire(self.ttl_seconds)
                if self.is_serving and not self.tasks.draining:
                    await self.elsewhere.recover()
            except StoreUnavailableError as error:
                log.error("%s", error)
            except Exception:  # what is wrong with one session is not to end all others
                log.exception("looking after sessions")

    async def _drop_lost(self) -> None:
        """Others had taken this process for dead: what they have by now is not its own."""
        owned = await self._store.owned(self._ownership.me.id)
        for record in self._loaded.all():
            if record.row is not None and owned.get(record.row.id) != record.row.epoch:
                await self._drop(record, Ending.MOVED)


def _not_there(session_id: str) -> SessionNotFoundError:
    return SessionNotFoundError(f"there is no session {session_id!r}", session_id=session_id)


def _refuse_if_busy(record: SessionRecord, turn_count: int) -> None:
    """SessionBusyError if a turn runs, or has begun since the session had ``turn_count``."""
    session = record.session
    if record.running is not None or session.turn_count != turn_count:
        turn = session.turn_count
        raise SessionBusyError(f"session {session.id} has turn {turn} running, or had it just now", turn=turn)
