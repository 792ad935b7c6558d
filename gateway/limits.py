"""Limits on what a connection may send: the size of a body, and the time until the next byte."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.errors import ApiError

_CLOSE = {"connection": "close"}


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
            await error.response()(scope, receive, send)
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
        while more:
            try:
                message = await asyncio.wait_for(receive(), self._idle_seconds)
            except TimeoutError:
                what = f"the body did not come within {self._idle_seconds} s"
                raise ApiError(408, what, kind="timeout_error", headers=_CLOSE) from None
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._max_bytes:
                raise self._too_large()
        return bytes(body)

    def _too_large(self) -> ApiError:
        message = f"the body must have at most {self._max_bytes} bytes"
        return ApiError(413, message, code="request_too_large", headers=_CLOSE)


class IdleLimitedProtocol(H11Protocol):
    """A connection that is also closed if its first request, or the rest of a request's header,
    does not come. uvicorn itself limits only the time between two requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect_a_request()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_a_request()

    def _expect_a_request(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
