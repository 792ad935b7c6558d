"""Limits on what a connection may send and hold: the size of a body, the time until it is there,
and the time that a caller may neither send nor take anything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.errors import ApiError

_CLOSE = {"connection": "close"}

_LONGEST_BODY = 5
"""Factor over the idle time in which a whole body must come, however steadily it trickles in."""

_MOST_UNREAD = 16
"""Factor over a body's greatest size up to which a larger one is thrown away. A caller that is cut
off while it still sends never reads why."""


_SEND_BUFFER = 2**18
"""Bytes of an answer that the system keeps for a slow reader: it would keep some megabytes."""


class BodyLimit:
    """Read each request's body before the application does, up to a size, and in time."""

    def __init__(self, app: ASGIApp, max_bytes: int, idle_seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope["headers"], receive)
        except ApiError as error:
            await self._refuse(error, scope, receive, send)
            return
        if body is None:
            return  # the caller has left
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, receive_again, send)

    async def _read(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> bytes | None:
        """Return the body, None if the caller leaves. ApiError if it is too large or too late."""
        declared = dict(headers).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large()
        body, more = bytearray(), True
        longest = self._idle_seconds * _LONGEST_BODY
        try:
            async with asyncio.timeout(longest):
                while more:
                    message = await asyncio.wait_for(receive(), self._idle_seconds)
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._max_bytes:
                        raise self._too_large()
        except TimeoutError:
            what = f"the body must come within {longest} s, and its next byte within {self._idle_seconds} s"
            raise ApiError(408, what, kind="timeout_error", headers=_CLOSE) from None
        return bytes(body)

    async def _refuse(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer at once. Throw the rest of a body that is too large away before the connection
        closes."""

        async def send_and_read_on(message: Message) -> None:
            if message["type"] != "http.response.body" or error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                await send(message)
                return
            await send({**message, "more_body": True})
            await self._throw_away(receive)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await error.response()(scope, receive, send_and_read_on)

    async def _throw_away(self, receive: Receive) -> None:
        left, more = self._max_bytes * _MOST_UNREAD, True
        try:
            async with asyncio.timeout(self._idle_seconds):
                while more and left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError:
            pass

    def _too_large(self) -> ApiError:
        message = f"the body must have at most {self._max_bytes} bytes"
        return ApiError(413, message, code="request_too_large", headers=_CLOSE)


class IdleLimitedProtocol(H11Protocol):
    """A connection that is also closed if a request's header does not come in time, and if its
    caller takes nothing of an answer or has vanished.

    uvicorn itself limits only the time between two requests.
    """

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        _bound(transport.get_extra_info("socket"), self.timeout_keep_alive)
        self._expect_a_header()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_a_header()
        else:
            self._forget_the_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was waited for."""
        self._forget_the_header()
        super().connection_lost(exc)

    def _expect_a_header(self) -> None:
        """Begin to wait for the rest of a header, which more bytes do not prolong."""
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _forget_the_header(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def _bound(connection: socket.socket | None, seconds: float) -> None:
    """Let the system keep little of an answer, and close a connection whose caller has vanished, or
    takes nothing for so long."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(seconds / 4)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
