"""One Chat stream: commands in, events out, at most one turn watched at a time. It knows no wire
types.

The stream owns no turn: it starts one, reads the turn's record, and may go away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import nullcontext
from itertools import islice
from typing import Protocol

from opentelemetry.context import Context

from orchestrator.errors import (
    ChatProtocolError,
    ChatQueueFullError,
    MessageCancelledError,
    SessionBusyError,
    SessionMovedError,
    ShuttingDownError,
)
from orchestrator.sessions.admission.demand import AdmissionWait
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.conversation.messages import NO_OPTIONS
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.durability.loaded import SessionRecord, session_not_found
from orchestrator.sessions.entrance.chat_commands import (
    BadCommand,
    CancelTurn,
    ChatClosing,
    ChatEvent,
    Command,
    CommandFailed,
    SendMessage,
    SessionOpened,
    StartChat,
    TurnHappened,
)
from orchestrator.sessions.entrance.requests import HasWaiting, NewSession, UserMessage
from orchestrator.sessions.turns.readers import TurnReader
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn_record import TurnRecord
from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.telemetry.tracing import context_of

MAX_WAITING = 64
"""Messages of one chat that may wait for their turns."""
MAX_WAITING_LENGTH = 2**20
"""Characters in waiting messages and their predictions, if there is more than one message."""


class ChatSessions(Protocol):
    """The calls of `Sessions` that a chat makes, each described there."""

    chats: set[HasWaiting]
    tasks: TurnTasks

    async def create(self, new: NewSession) -> SessionRecord:
        """Create a session."""

    async def resume(self, session_id: str, stream_settings: GenerationSettings, caller: Principal) -> SessionRecord:
        """Return a session that the stream continues."""

    async def send(
        self,
        record: SessionRecord,
        message: UserMessage,
        stream_settings: GenerationSettings,
        parent: Context,
        wait: AdmissionWait,
    ) -> TurnRecord:
        """Start a message's turn."""

    async def cancel(self, record: SessionRecord, turn: int) -> None:
        """Cancel a turn."""

    async def turn_of_request(self, record: SessionRecord, request_id: str) -> int:
        """Return the turn that a message has started."""

    def note_refusal(self, error: Exception, parent: Context, session_id: str = "") -> None:
        """Tell the watcher that a message was refused."""


class ChatStream:
    """Reads commands while a turn runs, so that a cancel is heard at once and messages queue up."""

    def __init__(self, sessions: ChatSessions, parent: Context) -> None:
        self._sessions = sessions
        self._parent = parent
        self._record: SessionRecord | None = None
        self._settings = GenerationSettings()
        self._waiting: deque[SendMessage] = deque()
        self._answers: asyncio.Queue[ChatEvent] = asyncio.Queue(MAX_WAITING)
        """Answers to commands; while it is full, no command is read."""
        self._starting = asyncio.Lock()
        """Held while a message is being started: then a cancel must wait."""
        self._admission_wait = AdmissionWait()
        """The wait of the message that is being started."""
        self._reader: TurnReader | None = None
        self._wake = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Number of messages that wait for the turns before them."""
        return len(self._waiting) - (bool(self._waiting) and self._starting.locked())

    async def run(self, commands: AsyncIterator[Command]) -> AsyncGenerator[ChatEvent]:
        """Yield events until the client has stopped sending and its last turn has ended, or the
        server shuts down. Raises what reading the commands raises."""
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(commands))
            reading.add_done_callback(lambda _: self._wake.set())
            starting: asyncio.Task[CommandFailed | ChatClosing | None] | None = None
            self._sessions.chats.add(self)
            try:
                with self._sessions.tasks.waking_on_drain(self._wake):
                    while True:
                        self._wake.clear()
                        while not self._answers.empty():
                            yield self._answers.get_nowait()
                        if self._reader is None and self._waiting and starting is None:
                            starting = group.create_task(self._start_next())  # it may wait for long
                            starting.add_done_callback(lambda _: self._wake.set())
                        if starting is not None and starting.done():
                            failed, starting = starting.result(), None
                            if failed is not None:
                                yield failed
                                if isinstance(failed, ChatClosing):
                                    return
                                continue
                        while (event := self._next_event()) is not None:
                            yield event
                            if isinstance(event, ChatClosing):  # the turn goes on in another process
                                return
                        if self._reader is None and not self._waiting:
                            if self._sessions.tasks.draining:
                                yield ChatClosing(ShuttingDownError("the server is shutting down"))
                                return
                            if reading.done() and self._answers.empty():
                                break
                        await self._sleep(is_starting=starting is not None)
            except GeneratorExit:  # the caller has left; the group would wrap this in another exception
                return
            finally:
                self._sessions.chats.discard(self)
                reading.cancel()
                if starting is not None:
                    starting.cancel()
        failure = reading.result()
        if failure is not None:
            raise failure

    async def _read(self, commands: AsyncIterator[Command]) -> Exception | None:
        """Carry out commands until there are no more. Returns the error of reading them."""
        try:
            async for command in commands:
                await self._carry_out(command)
        except Exception as failure:
            return failure
        return None

    async def _carry_out(self, command: Command) -> None:
        try:
            answer = await self._answer_to(command)
        except Exception as error:
            answer = CommandFailed(command.request_id, error)
        if answer is not None:
            await self._answers.put(answer)
        self._wake.set()

    async def _answer_to(self, command: Command) -> ChatEvent | None:
        if isinstance(command, BadCommand):
            raise command.error
        if isinstance(command, StartChat):
            return await self._start(command)
        if self._record is None:
            raise ChatProtocolError("send start first")
        if isinstance(command, CancelTurn):
            if command.caller.name != self._record.stored.principal:  # as `Sessions.send` does
                raise session_not_found(self._record.session.id)
            return await self._cancel(self._record, command.which)
        if self.waiting_count >= MAX_WAITING:
            raise ChatQueueFullError(f"{MAX_WAITING} messages of this chat wait for their turns")
        behind = islice(self._waiting, self._starting.locked(), None)
        length = sum(waiting.message.length for waiting in behind)
        if length and length + command.message.length > MAX_WAITING_LENGTH:
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
        given = (
            ("system", asked.system),
            ("template_time", asked.clock),
            ("metadata", asked.metadata or None),
            ("template_options", None if asked.options == NO_OPTIONS else asked.options),
        )
        for name, value in given:
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
        waits_for_permit = self._starting.locked() and self._waiting and self._waiting[0].request_id == which
        if waits_for_permit:
            self._admission_wait.cancel()
        async with self._starting:
            for waiting in self._waiting:
                if waiting.request_id == which:
                    self._waiting.remove(waiting)
                    return CommandFailed(
                        which, MessageCancelledError("the message was cancelled before its turn began")
                    )
        if waits_for_permit and record.requests.answer_to(which) is None:
            return None  # the answer to the message says so
        await self._sessions.cancel(record, await self._sessions.turn_of_request(record, which))
        return None

    async def _start_next(self) -> CommandFailed | ChatClosing | None:
        """Start the next message's turn, unless another stream's turn runs. Returns what to tell
        the client if it did not start."""
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
            except SessionMovedError as error:  # sent again with its request_id, the owner answers it
                return ChatClosing(error)
            except Exception as error:
                self._waiting.popleft()
                self._sessions.note_refusal(error, parent, self._record.session.id)
                return CommandFailed(command.request_id, error)
            self._waiting.popleft()
            return None

    def _next_event(self) -> TurnHappened | ChatClosing | None:
        """Return the next event of the watched turn; None if there is none now."""
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

    async def _sleep(self, *, is_starting: bool) -> None:
        """Wait until something may have happened. `run` has awaited nothing since it looked, so
        nothing has."""
        watched = self._reader.record if self._reader is not None else None
        if watched is None and self._waiting and not is_starting:
            if self._record is None or self._record.running is None:
                return  # the next message's turn may start
            watched = self._record.running  # another stream's
        with nullcontext() if watched is None else watched.waking(self._wake):
            await self._wake.wait()
