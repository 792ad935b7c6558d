"""All sessions: the door of this room. A turn's task is owned here; whoever asks gets the turn's record to read.

Cancelling a turn, deleting or expiring its session, draining and shutting down are one thing: ending a task and awaiting it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Protocol

from opentelemetry.context import Context

from orchestrator.errors import NotReadyError, SessionBusyError, TurnNotFoundError
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.choices import resolved_choice
from orchestrator.sessions.pair import Pair, Prompt
from orchestrator.sessions.requests import NAMELESS, RequestName, Requests
from orchestrator.sessions.resolving import ResolvedTurn
from orchestrator.sessions.session import common_prefix_length
from orchestrator.sessions.settings import GenerationSettings
from orchestrator.sessions.store import SessionRecord, SessionStore
from orchestrator.sessions.turn import Ending, Turn
from orchestrator.sessions.turn_record import TurnEnded, TurnRecord, TurnStarted
from orchestrator.sessions.turn_tasks import TurnTasks
from orchestrator.sessions.turn_watch import TurnBegun, Watcher
from slipstream.errors import FieldViolation, InvalidFieldsError

log = logging.getLogger(__name__)

_EXPIRY_PERIOD_SECONDS = 1.0
_REMEMBERED_REQUESTS = 10_000
_NOTHING_SAID = GenerationSettings()


@dataclass(frozen=True, slots=True)
class NewSession:
    """What asks for a session. ``clock`` is what its chat template takes for now."""

    system: str | None = None
    settings: GenerationSettings = _NOTHING_SAID
    clock: datetime | None = None
    name: RequestName = NAMELESS


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What starts a turn. ``settings`` are this turn's alone."""

    content: str
    settings: GenerationSettings = _NOTHING_SAID
    name: RequestName = NAMELESS


@dataclass(frozen=True, slots=True)
class Generation:
    """What asks for answers without a session to keep."""

    prompt: Prompt
    settings: GenerationSettings = _NOTHING_SAID
    choice_count: int = 1
    clock: datetime | None = None
    name: RequestName = NAMELESS


@dataclass(frozen=True, slots=True)
class SessionsLoad:
    """How busy the sessions are."""

    session_count: int
    running_count: int
    """Turns."""
    waiting_count: int
    """Messages of chats that wait for their turns."""
    not_drafting_count: int
    """Of the running turns, those whose draft is left alone because it would not pay."""


class HasWaiting(Protocol):
    """A stream whose messages may have to wait."""

    @property
    def waiting_count(self) -> int:
        """How many do."""


class Sessions:
    """Use as a context: inside it turns run, after it none is left."""

    def __init__(self, store: SessionStore, not_ready: Callable[[], str], watcher: Watcher) -> None:
        """``not_ready`` says what is waited for while there is no pair."""
        self._store = store
        self._watcher = watcher
        self._not_ready = not_ready
        self._pair: Pair | None = None
        self._spent: SessionRounds | None = (
            None  # in place of an ended generation's: there are thousands, and theirs are large
        )
        self.tasks = TurnTasks()
        self.chats: set[HasWaiting] = set()
        """The streams that are open."""
        self._created: Requests[str] = Requests(_REMEMBERED_REQUESTS)
        self._generated: Requests[list[str]] = Requests(_REMEMBERED_REQUESTS)

    async def __aenter__(self) -> Sessions:
        await self.tasks.__aenter__()
        self.tasks.run_beside(self._expire())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.tasks.__aexit__(kind, error, trace)
        for record in self._store.all():
            self._release(record)

    @property
    def is_serving(self) -> bool:
        """Whether there is a pair."""
        return self._pair is not None

    @property
    def load(self) -> SessionsLoad:
        """As it is now. Callable from any thread."""
        running = self.tasks.turns
        return SessionsLoad(
            session_count=len(self._store),
            running_count=len(running),
            waiting_count=sum(chat.waiting_count for chat in list(self.chats)),
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

    @property
    def ttl_seconds(self) -> float:
        """Idle time after which a session expires."""
        return self._store.ttl_seconds

    async def create(self, new: NewSession) -> SessionRecord:
        """A new session, or the one that this request got before.

        SessionLimitError, RequestIdReusedError, NotReadyError; InvalidFieldsError for settings that no turn could be run with.
        """
        known = self._created.find(new.name)
        if known is not None:
            return self._store.get(known)
        if new.system == "":
            raise InvalidFieldsError([FieldViolation("system", "must not be empty: leave it unset")])
        pair = self.pair
        pair.check_length(len(new.system or ""), "system")
        await pair.check(new.settings)
        known = self._created.find(new.name)
        if known is not None:
            return self._store.get(known)
        self.tasks.refuse_while_draining()
        self._store.make_room(1, listed=True)
        record = self._store.add(pair.codec, pair.rounds.open, new.settings, system=new.system, clock=new.clock)
        self._created.keep(new.name, record.session.id)
        return record

    def get(self, session_id: str) -> SessionRecord:
        """SessionNotFoundError or SessionExpiredError."""
        return self._store.get(session_id)

    async def resume(self, session_id: str, stream_settings: GenerationSettings) -> SessionRecord:
        """A session that a stream goes on with. What ``get`` raises, NotReadyError, and InvalidFieldsError as for a new one."""
        record = self._store.get(session_id)
        await self.pair.check(stream_settings.over(record.settings))
        return self._store.get(session_id)  # it may be gone by now

    def page(self, size: int, after: tuple[int, str] | None) -> tuple[list[SessionRecord], bool]:
        """See SessionStore.page."""
        return self._store.page(size, after)

    async def send(
        self, record: SessionRecord, message: UserMessage, stream_settings: GenerationSettings, parent: Context
    ) -> TurnRecord:
        """Start a message's turn, or find the one that it has started before.

        SessionBusyError while another turn runs; InvalidFieldsError and whatever else is wrong with the message.
        """
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
        await pair.check_structure(settings)  # the last wait: what is looked at below holds until the turn has begun
        known = self._known_turn(record, message)
        if known is not None:
            return known
        self.tasks.refuse_while_draining()
        self._store.get(session.id)  # it may have been deleted or have expired meanwhile
        _refuse_if_busy(record, following.turn_count)
        resolved = pair.resolve(settings, len(prompt), acceptance=session.acceptance)
        turn_record = self._begin(record, prompt, resolved, message.name.id, parent, content=message.content)
        record.requests.keep(message.name, turn_record.turn)
        return turn_record

    async def generate(self, generation: Generation, parent: Context) -> list[TurnRecord]:
        """Start a turn for each answer, or find those that this request has started before."""
        known = self._known_generation(generation)
        if known is not None:
            return known
        self.tasks.refuse_while_draining()
        pair, settings = self.pair, generation.settings
        prompt = await pair.encode(generation.prompt, generation.clock or self._store.now())
        await pair.check_structure(settings)
        known = self._known_generation(generation)
        if known is not None:
            return known
        self.tasks.refuse_while_draining()
        resolved = pair.resolve(settings, len(prompt))
        for old in self._store.make_room(generation.choice_count, listed=False):
            self._release(old)
        records = [
            self._store.add(pair.codec, pair.rounds.open, settings, listed=False)
            for _ in range(generation.choice_count)
        ]
        turns: list[TurnRecord] = []
        for index, record in enumerate(records):
            choice = resolved_choice(resolved, index)
            after = turns[0] if turns else None  # the others find the prompt's pages in the prefix cache
            turns.append(self._begin(record, prompt, choice, generation.name.id, parent, after=after))
        self._generated.keep(generation.name, [record.session.id for record in records])
        return turns

    def note_refusal(self, error: Exception, parent: Context, session_id: str = "") -> None:
        """Of a message or a generation: no turn of it will be seen."""
        self._watcher.refused(error, "" if self._pair is None else self._pair.target.name, parent, session_id)

    def turn(self, session_id: str, turn: int) -> TurnRecord:
        """A turn's record. SessionNotFoundError, SessionExpiredError, TurnNotFoundError or TurnNotKeptError."""
        return self._store.get(session_id).turns.get(turn)

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

    async def delete(self, session_id: str) -> None:
        """Take a session out, end its turn, give its pages back. SessionNotFoundError or SessionExpiredError."""
        record = self._store.get(session_id)
        self._store.remove(record)
        if record.running is not None:
            await self.tasks.end(record.running, Ending.CANCELLED)
        self._release(record)

    def abandon(self, turns: Sequence[TurnRecord]) -> None:
        """Nobody can ask for these generations again: end those that still run, keep none."""
        for turn in turns:
            record = self._store.find(turn.started.session_id)
            if record is not None:
                self._store.remove(record)
                if record.running is not None:
                    record.running.end(Ending.CANCELLED)  # its pages come back when it has ended

    def _begin(
        self,
        record: SessionRecord,
        prompt: list[int],
        resolved: ResolvedTurn,
        request_id: str,
        parent: Context,
        *,
        content: str | None = None,
        after: TurnRecord | None = None,
    ) -> TurnRecord:
        pair, session = self.pair, record.session
        shared = common_prefix_length(session.tokens, prompt)
        rule = resolved.terms.rule
        answer = session.begin_turn(list(prompt), rule, resolved.limits, content)
        pair.rounds.begin_turn(record.rounds, shared, recompute=resolved.wants_prompt_logprobs)
        started = TurnStarted(session.id, request_id, rule.seed, len(prompt))
        turn_record = TurnRecord(session.turn_count, started, tells_origins=resolved.tells_origins)
        shown = content if content is not None else session.codec.decode(prompt) if self._watcher.shows_text else None
        begun = TurnBegun(
            pair.target.name, session.id, session.turn_count, resolved, record.window, parent, record.traced, shown
        )
        watch = self._watcher.begin_turn(begun)
        turn = Turn(
            session,
            answer,
            turn_record,
            resolved,
            pair.rounds,
            record.rounds,
            watch=watch,
            after=after,
            on_ended=lambda ended: self._ended(record, turn_record, ended),
        )
        record.running, record.traced = turn, watch.trace_context
        self.tasks.begin(turn)
        record.turns.add(turn_record)
        self._store.touch(record)
        return turn_record

    def _ended(self, record: SessionRecord, turn: TurnRecord, ended: TurnEnded) -> None:
        record.running = None
        self._store.touch(record)
        if ended.error is not None and not ended.generated_token_count:  # undone: the same request may try again
            record.requests.forget(turn.started.request_id)
        record.turns.trim()
        if not record.listed:  # what is left to keep is the turn's record
            self._release(record)
            record.session.forget()
            record.rounds = self._spent or record.rounds

    def _known_turn(self, record: SessionRecord, message: UserMessage) -> TurnRecord | None:
        turn = record.requests.find(message.name)
        return None if turn is None else record.turns.get(turn)

    def _known_generation(self, generation: Generation) -> list[TurnRecord] | None:
        ids = self._generated.find(generation.name) or ()
        records = [record for session_id in ids if (record := self._store.find(session_id)) is not None]
        if not records or len(records) < len(ids):  # answers that are kept no more are generated anew
            return None
        return [record.turns.get(1) for record in records]

    def _release(self, record: SessionRecord) -> None:
        if self._pair is not None:
            self._pair.rounds.release(record.rounds)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_PERIOD_SECONDS)
            for record in self._store.expire():
                log.info("session %s expired", record.session.id, extra={"session_id": record.session.id})
                self._watcher.session_expired()
                self._release(record)


def _refuse_if_busy(record: SessionRecord, turn_count: int) -> None:
    """SessionBusyError if a turn runs, or has begun since the session had ``turn_count``."""
    session = record.session
    if record.running is not None or session.turn_count != turn_count:
        turn = session.turn_count
        raise SessionBusyError(f"session {session.id} has turn {turn} running, or had it just now", turn=turn)
