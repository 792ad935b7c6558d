# Generated from aio/session.py by tools/make_blocking_client.py. Edit that module.
"""A conversation that the server stores."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from slipstream.client import requests
from slipstream.client.blocking.connection import Connection
from slipstream.client.blocking.reply import Reply
from slipstream.client.blocking.threads import Lock
from slipstream.client.blocking.watcher import Watcher
from slipstream.client.ending import SUCCESSION_SECONDS
from slipstream.client.messages import Message, Said
from slipstream.client.sessions import SessionInfo
from slipstream.client.settings import Settings
from slipstream.client.watching import Watching
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.v1 import orchestrator_pb2


class Session:
    """A conversation that the server stores, to send messages to, one turn at a time.

    As a context it closes a running reply at the end of the block. The session itself stays at the
    server until it is deleted or expires.
    """

    def __init__(
        self,
        connection: Connection,
        info: SessionInfo,
        messages: Sequence[Message] = (),
        settings: Settings | None = None,
    ) -> None:
        self.info = info
        """The session as it was when it was created or asked for."""
        self.messages = tuple(messages)
        """The session's messages at that time, if `get_session` or ``chat`` asked for it."""
        self._connection = connection
        self._settings = settings
        self._sending = Lock()
        self._watcher: Watcher | None = None

    @property
    def session_id(self) -> str:
        """The id by which the session is resumed."""
        return self.info.session_id

    def send(
        self,
        content: str | Sequence[Said],
        settings: Settings | None = None,
        request_id: str | None = None,
        *,
        prediction: str | Sequence[int] | None = None,
        note: str = "",
        timeout: float | None = None,
    ) -> Reply:
        """Send a user message, or several messages, such as the results of tools, of which the last
        is a user's or a tool's. ``timeout`` is for the whole turn, which ends when it has passed.

        A reply of this session that was not read to its end is closed first. With the
        ``request_id`` of an earlier message, and the same content, the reply is that message's
        turn. ``prediction`` is text, or token ids, that the answer probably contains: it makes the
        answer come sooner, and never changes it. ``note`` is kept with the turn: `get_turn` returns
        it.
        """
        request = requests.send_message(
            self.session_id, content, settings, self._settings, request_id, prediction, note
        )
        with self._sending:
            if self._watcher is not None:
                again = self._watcher.watching.request_id == request.request_id
                self._watcher.stop_watching(SUCCESSION_SECONDS, cancelling=not again)
            self._watcher = Watcher(self._connection, Watching(request, self._connection.attempts(timeout)))
            return Reply(self._watcher)

    def watch(self, turn: int, after_token_count: int = 0, *, timeout: float | None = None) -> Reply:
        """Watch a turn, running or ended, from a position. The result has the tokens after it."""
        return watch(self._connection, self.session_id, turn, after_token_count, timeout)

    def cancel(self, turn: int | None = None, *, timeout: float | None = None) -> None:
        """End a turn early: ``turn``, or the running reply's, if there is one.

        Another task or thread than the reader's may call it. PeerError if there is no such turn, or
        the server cannot be told.
        """
        if turn is not None:
            cancel(self._connection, self.session_id, turn, timeout)
        elif self._watcher is not None:
            self._watcher.cancel_turns(timeout)

    def delete(self, *, timeout: float | None = None) -> None:
        """Delete the session and end its turn. PeerError if there is no such session."""
        delete(self._connection, self.session_id, timeout)

    def close(self) -> None:
        """Close the reply that was not read to its end, if there is one. The session stays."""
        if self._watcher is not None:
            self._watcher.stop_watching()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch(connection: Connection, session_id: str, turn: int, after_token_count: int, timeout: float | None) -> Reply:
    """Watch a turn."""
    request = orchestrator_pb2.WatchTurnRequest(session_id=session_id, turn=turn, after_token_count=after_token_count)
    return Reply(Watcher(connection, Watching(request, connection.attempts(timeout))))


def cancel(connection: Connection, session_id: str, turn: int, timeout: float | None) -> None:
    """End a turn early."""
    request = orchestrator_pb2.CancelTurnRequest(session_id=session_id, turn=turn)
    connection.call(connection.stub.CancelTurn, request, connection.attempts(timeout))


def delete(connection: Connection, session_id: str, timeout: float | None) -> None:
    """Delete a session."""
    request = orchestrator_pb2.DeleteSessionRequest(session_id=session_id)
    attempts = connection.attempts(timeout)
    try:
        connection.call(connection.stub.DeleteSession, request, attempts)
    except PeerError as error:
        if error.code is not Code.NOT_FOUND or not attempts.repeated:  # else an attempt that was lost has done it
            raise
