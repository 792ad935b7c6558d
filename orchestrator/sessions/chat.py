"""One Chat stream: commands in, events out, at most one turn at a time. Knows nothing of wire types."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from opentelemetry.context import Context

from orchestrator.errors import ChatProtocolError, SessionBusyError
from orchestrator.processes.pair import ServedPair
from orchestrator.sessions.settings import GenerationSettings
from orchestrator.sessions.store import SessionRecord
from orchestrator.sessions.turns import TurnEvent
from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError


@dataclass(frozen=True, slots=True)
class StartChat:
    """Open a new session or resume one."""

    session_id: str | None
    system: str | None
    settings: GenerationSettings


@dataclass(frozen=True, slots=True)
class UserMessage:
    """Start a turn."""

    content: str
    settings: GenerationSettings


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """End the running turn."""


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The session this stream talks to."""

    record: SessionRecord


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A command's error; the stream goes on."""

    error: Exception


@dataclass(frozen=True, slots=True)
class BadCommand:
    """A request that cannot be understood."""

    error: SlipstreamError


Command = StartChat | UserMessage | CancelTurn | BadCommand
ChatEvent = SessionOpened | TurnEvent | CommandFailed


class ChatStream:
    """Reads commands while a turn runs, so that a cancel is heard at once and messages queue up."""

    def __init__(self, pair: ServedPair, parent: Context) -> None:
        self._pair = pair
        self._parent = parent
        self._record: SessionRecord | None = None
        self._settings = GenerationSettings()
        self._queue: asyncio.Queue[StartChat | UserMessage | BadCommand | None] = asyncio.Queue()
        self._cancels: deque[asyncio.Event] = deque()  # one for each message not answered yet, the running one first

    async def run(self, commands: AsyncIterator[Command]) -> AsyncGenerator[ChatEvent]:
        """Events until the client has stopped sending and its last turn has ended."""
        reader = asyncio.create_task(self._read(commands))
        try:
            while (command := await self._queue.get()) is not None:
                try:
                    if isinstance(command, StartChat):
                        yield self._start(command)
                        continue
                    if isinstance(command, BadCommand):
                        raise command.error
                    try:
                        async with aclosing(self._turn(command, self._cancels[0])) as events:
                            async for event in events:
                                yield event
                    finally:
                        self._cancels.popleft()
                except Exception as error:
                    yield CommandFailed(error)
            reader.result()
        finally:
            reader.cancel()

    async def _read(self, commands: AsyncIterator[Command]) -> None:
        try:
            async for command in commands:
                if isinstance(command, CancelTurn):
                    if self._cancels:
                        self._cancels[0].set()
                    continue
                if isinstance(command, UserMessage):
                    self._cancels.append(asyncio.Event())
                self._queue.put_nowait(command)
        finally:
            self._queue.put_nowait(None)

    def _start(self, command: StartChat) -> SessionOpened:
        if self._record is not None:
            raise ChatProtocolError("this stream has its session already; start once, then send messages")
        if command.session_id is None:
            self._record = self._pair.create_session(command.system)
        elif command.system is not None:
            what = "must not be set when a session is resumed: it has its system message"
            raise InvalidFieldsError([FieldViolation("start.system", what)])
        else:
            self._record = self._pair.store.get(command.session_id)
        self._settings = command.settings
        return SessionOpened(self._record)

    async def _turn(self, command: UserMessage, cancelled: asyncio.Event) -> AsyncGenerator[TurnEvent]:
        if self._record is None:
            raise ChatProtocolError("send start before the first message")
        session = self._record.session
        settings = command.settings.over(self._settings)
        await self._pair.check_structure(settings)  # the only wait: what is looked at below holds until the turn begins
        if session.turn is not None:
            raise SessionBusyError(f"session {session.id} has a turn running on another stream", session_id=session.id)
        self._pair.store.get(session.id)  # it may have been deleted or have expired meanwhile
        if not command.content:
            raise InvalidFieldsError([FieldViolation("message.content", "must not be empty")])
        prompt = session.prompt_for(command.content)
        resolved = self._pair.resolve(settings, len(prompt), acceptance=session.acceptance)
        turn = self._pair.run_turn(
            self._record, prompt, resolved, content=command.content, cancelled=cancelled, parent=self._parent
        )
        async with aclosing(turn) as events:
            async for event in events:
                yield event
