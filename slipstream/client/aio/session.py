"""A conversation that the server keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from slipstream.client import requests
from slipstream.client.aio.connection import AsyncConnection
from slipstream.client.aio.reply import AsyncReply
from slipstream.client.aio.watcher import AsyncWatcher
from slipstream.client.ending import SUCCESSION_SECONDS
from slipstream.client.sessions import Message, SessionInfo
from slipstream.client.settings import Settings
from slipstream.client.watching import Watching
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.v1 import orchestrator_pb2


class AsyncSession:
    """Sends messages to one session, one turn at a time. As a context it ends a running reply
    behind it; the session itself stays at the server until it is deleted or expires."""

    def __init__(
        self,
        connection: AsyncConnection,
        info: SessionInfo,
        messages: Sequence[Message] = (),
        settings: Settings | None = None,
    ) -> None:
        self.info = info
        """As it was when it was created or asked for."""
        self.messages = tuple(messages)
        """Likewise, and only if it was asked for."""
        self._connection = connection
        self._settings = settings
        self._sending = asyncio.Lock()
        self._watcher: AsyncWatcher | None = None

    @property
    def session_id(self) -> str:
        """Resume the session by it."""
        return self.info.session_id

    async def send(
        self,
        content: str,
        settings: Settings | None = None,
        request_id: str | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncReply:
        """Send a user message. ``timeout`` is for the whole turn, which ends when it has passed.

        A reply of this session that was not read to its end is left first, as by its ``close``.
        Sent again with the ``request_id`` of a message that was sent before, it is that message's
        turn which is watched.
        """
        request = requests.send_message(self.session_id, content, settings, self._settings, request_id)
        async with self._sending:
            if self._watcher is not None:
                again = self._watcher.watching.request_id == request.request_id
                await self._watcher.end(SUCCESSION_SECONDS, cancelling=not again)
            self._watcher = AsyncWatcher(self._connection, Watching(request, self._connection.attempts(timeout)))
            return AsyncReply(self._watcher)

    async def watch(self, turn: int, after_token_count: int = 0, *, timeout: float | None = None) -> AsyncReply:
        """Look on at a turn, running or ended, from a position; the result has the tokens after
        it."""
        return watch(self._connection, self.session_id, turn, after_token_count, timeout)

    async def cancel(self, turn: int | None = None, *, timeout: float | None = None) -> None:
        """End a turn early, or without a number the running reply's, if there is one. Callable from
        another task. PeerError if there is no such turn or the server cannot be told."""
        if turn is not None:
            await cancel(self._connection, self.session_id, turn, timeout)
        elif self._watcher is not None:
            await self._watcher.cancel(timeout)

    async def delete(self, *, timeout: float | None = None) -> None:
        """End the session and its turn. PeerError if there is none."""
        await delete(self._connection, self.session_id, timeout)

    async def close(self) -> None:
        """Leave the reply that was not read to its end, if there is one. The session stays."""
        if self._watcher is not None:
            await self._watcher.end()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def watch(
    connection: AsyncConnection, session_id: str, turn: int, after_token_count: int, timeout: float | None
) -> AsyncReply:
    """Look on at a turn."""
    request = orchestrator_pb2.WatchTurnRequest(session_id=session_id, turn=turn, after_token_count=after_token_count)
    return AsyncReply(AsyncWatcher(connection, Watching(request, connection.attempts(timeout))))


async def cancel(connection: AsyncConnection, session_id: str, turn: int, timeout: float | None) -> None:
    """End a turn early."""
    request = orchestrator_pb2.CancelTurnRequest(session_id=session_id, turn=turn)
    await connection.call(connection.stub.CancelTurn, request, connection.attempts(timeout))


async def delete(connection: AsyncConnection, session_id: str, timeout: float | None) -> None:
    """End a session."""
    request = orchestrator_pb2.DeleteSessionRequest(session_id=session_id)
    attempts = connection.attempts(timeout)
    try:
        await connection.call(connection.stub.DeleteSession, request, attempts)
    except PeerError as error:
        if error.code is not Code.NOT_FOUND or not attempts.repeated:  # else an attempt that was lost has done it
            raise
