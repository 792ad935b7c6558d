"""One Chat stream: commands in, events out, at most one turn watched at a time. Knows nothing of
wire types.

The stream owns no turn: it asks for one, reads its record, and may vanish.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from opentelemetry.context import Context

from orchestrator.errors import (
    ChatProtocolError,
    ChatQueueFullError,
    MessageCancelledError,
    SessionBusyError,
    SessionMovedError,
    SessionNotFoundError,
    ShuttingDownError,
)
from orchestrator.sessions.admission.admission import AdmissionWait
from orchestrator.sessions.admission.principal import ANONYMOUS, Principal
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.durability.loaded import SessionRecord
from orchestrator.sessions.entrance.sessions import NewSession, Sessions, UserMessage
from orchestrator.sessions.turns.turn_record import TurnEvent, TurnReader
from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.telemetry.tracing import context_of

MAX_WAITING, MAX_WAITING_LENGTH = 64, 2**20
"""Messages of one chat that wait for their turns, and characters in them where there is more than
one."""


@dataclass(frozen=True, slots=True)
class StartChat:
    """Open a new session, or resume one with settings of the stream's own."""

    session_id: str | None
    session: NewSession

    @property
    def request_id(self) -> str:
        """The client's name for it."""
        return self.session.name.id


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Start a turn and watch it from a position. Its trace goes on from ``traceparent``, or if that
    is empty from the stream's."""

    message: UserMessage
    after_token_count: int = 0
    traceparent: str = ""

    @property
    def request_id(self) -> str:
        """The message's."""
        return self.message.name.id


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """End a turn, named by its number or by the request_id of its message."""

    which: int | str
    request_id: str = ""
    caller: Principal = ANONYMOUS


@dataclass(frozen=True, slots=True)
class BadCommand:
    """A request that cannot be understood."""

    error: SlipstreamError
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The session this stream talks to."""

    record: SessionRecord


class TurnHappened(NamedTuple):
    """An event of a turn."""

    turn: int
    event: TurnEvent


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A command's error; the stream goes on."""

    request_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class ChatClosing:
    """The server ends the stream."""

    error: SlipstreamError


Command = StartChat | SendMessage | CancelTurn | BadCommand
ChatEvent = SessionOpened | TurnHappened | CommandFailed | ChatClosing


class ChatStream:
    """Reads commands while a turn runs, so that a cancel is heard at once and messages queue up."""

    def __init__(self, sessions: Sessions, parent: Context) -> None:
        self._sessions = sessions
        self._parent = parent
        self._record: SessionRecord | None = None
        self._settings = GenerationSettings()
        self._waiting: deque[SendMessage] = deque()
        self._answers: asyncio.Queue[ChatEvent] = asyncio.Queue(MAX_WAITING)  # to commands; full, no more are read
        self._starting = asyncio.Lock()  # a message that is being started is no more, and not yet, to be cancelled
        self._admission_wait = AdmissionWait()  # for the permit of the message that is being started
        self._begins: asyncio.Task[CommandFailed | ChatClosing | None] | None = None
        self._reader: TurnReader | None = None
        self._wake = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Messages that wait for the turns before them."""
        return len(self._waiting) - (bool(self._waiting) and self._starting.locked())

    async def run(self, commands: AsyncIterator[Command]) -> AsyncGenerator[ChatEvent]:
        """Events until the client has stopped sending and its last turn has ended, or the server
        shuts down."""
        reading = asyncio.create_task(self._read(commands))
        self._sessions.chats.add(self)
        reading.add_done_callback(lambda _: self._wake.set())
        try:
            with self._sessions.tasks.waking_on_drain(self._wake):
                while True:
                    self._wake.clear()
                    while not self._answers.empty():
                        yield self._answers.get_nowait()
                    if self._reader is None and self._waiting and self._begins is None:
                        self._begins = asyncio.create_task(self._start_next())  # it may wait for long
                        self._begins.add_done_callback(lambda _: self._wake.set())
                    if self._begins is not None and self._begins.done():
                        failed, self._begins = self._begins.result(), None
                        if failed is not None:
                            yield failed
                            if isinstance(failed, ChatClosing):
                                return
                            continue
                    while (event := self._next()) is not None:
                        yield event
                        if isinstance(event, ChatClosing):  # the turn goes on elsewhere
                            return
                    if self._reader is None:
                        if self._sessions.tasks.draining and not self._waiting:
                            yield ChatClosing(ShuttingDownError("the server is shutting down"))
                            return
                        if reading.done() and not self._waiting and self._answers.empty():
                            reading.result()
                            return
                    await self._sleep()
        finally:
            self._sessions.chats.discard(self)
            ending = [reading] if self._begins is None else [reading, self._begins]
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)

    async def _read(self, commands: AsyncIterator[Command]) -> None:
        async for command in commands:
            try:
                answer = await self._take(command)
            except Exception as error:
                answer = CommandFailed(command.request_id, error)
            if answer is not None:
                await self._answers.put(answer)
            self._wake.set()

    async def _take(self, command: Command) -> ChatEvent | None:
        if isinstance(command, BadCommand):
            raise command.error
        if isinstance(command, StartChat):
            return await self._start(command)
        if self._record is None:
            raise ChatProtocolError("send start first")
        if isinstance(command, CancelTurn):
            if command.caller.name != self._record.principal:  # as `Sessions.send` has it
                name = self._record.session.id
                raise SessionNotFoundError(f"there is no session {name!r}", session_id=name)
            return await self._cancel(self._record, command.which)
        if self.waiting_count >= MAX_WAITING:
            raise ChatQueueFullError(f"{MAX_WAITING} messages of this chat wait for their turns")
        behind = islice(self._waiting, self._starting.locked(), None)
        length = sum(len(waiting.message.content) for waiting in behind)
        if length and length + len(command.message.content) > MAX_WAITING_LENGTH:
            raise ChatQueueFullError(f"messages of {length} characters of this chat wait for their turns")
        self._waiting.append(command)
        return None

    async def _start(self, command: StartChat) -> SessionOpened:
        if self._record is not None:
            raise ChatProtocolError("this stream has its session already; start once, then send messages")
        if command.session_id is None:
            self._record = await self._sessions.create(command.session)
            return SessionOpened(self._record)
        asked = command.session
        for name, value in (("system", asked.system), ("template_time", asked.clock)):
            if value is not None:
                what = "must not be set when a session is resumed: it has its own"
                raise InvalidFieldsError([FieldViolation(f"start.{name}", what)])
        self._record = await self._sessions.resume(command.session_id, asked.settings, asked.caller)
        self._settings = asked.settings
        return SessionOpened(self._record)

    async def _cancel(self, record: SessionRecord, which: int | str) -> CommandFailed | None:
        if isinstance(which, int):
            await self._sessions.cancel(record, which)
            return None
        waits_for_place = self._starting.locked() and self._waiting and self._waiting[0].request_id == which
        if waits_for_place:
            self._admission_wait.cancel()
        async with self._starting:
            for waiting in self._waiting:
                if waiting.request_id == which:
                    self._waiting.remove(waiting)
                    return CommandFailed(
                        which, MessageCancelledError("the message was cancelled before its turn began")
                    )
        if waits_for_place and record.requests.answer_to(which) is None:
            return None  # the message itself is told
        await self._sessions.cancel(record, await self._sessions.turn_of_request(record, which))
        return None

    async def _start_next(self) -> CommandFailed | ChatClosing | None:
        """Start the next message's turn, unless another stream's is running."""
        async with self._starting:
            if not self._waiting or self._record is None:
                return None
            command = self._waiting[0]
            parent = context_of(command.traceparent) if command.traceparent else self._parent
            wait = self._admission_wait = AdmissionWait()
            try:
                turn = await self._sessions.send(self._record, command.message, self._settings, parent, wait)
                self._reader = TurnReader(turn, command.after_token_count)
            except SessionBusyError:
                return None
            except SessionMovedError as error:  # sent again by its request_id, it is found wherever it lives
                return ChatClosing(error)
            except Exception as error:
                self._waiting.popleft()
                self._sessions.note_refusal(error, parent, self._record.session.id)
                return CommandFailed(command.request_id, error)
            self._waiting.popleft()
            return None

    def _next(self) -> TurnHappened | ChatClosing | None:
        """What the watched turn has to tell, if anything."""
        reader = self._reader
        try:
            event = None if reader is None else reader.next()
        except SlipstreamError as error:
            return ChatClosing(error)
        if reader is None or event is None:
            return None
        if reader.done:
            self._reader = None
        return TurnHappened(reader.record.turn, event)

    async def _sleep(self) -> None:
        """Until something may have happened: nothing has since it was last looked for, for nothing
        was awaited."""
        watched = self._reader.record if self._reader is not None else None
        if watched is None and self._waiting and self._begins is None:
            if self._record is None or self._record.running is None:
                return  # the next message's turn may start
            watched = self._record.running.record  # another stream's
        with nullcontext() if watched is None else watched.waking(self._wake):
            await self._wake.wait()
