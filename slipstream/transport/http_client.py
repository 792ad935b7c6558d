"""HTTP requests whose answers are read as they come: h11 on asyncio's streams.

Errors of every kind leave this module as `RequestError`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11

_READ_BYTES = 65536
_HEADER_BYTES = 64 * 1024


class RequestError(Exception):
    """A request that failed. Its text is the failure's kind, the same for all alike."""

    def __init__(self, kind: str, retry_after: float | None = None, message: str = "") -> None:
        super().__init__(kind)
        self.retry_after = retry_after
        self.message = message


class NotJsonError(RequestError):
    """An answer whose body is no JSON."""

    def __init__(self) -> None:
        super().__init__("not JSON")


class _StaleError(Exception):
    """The server closed a kept connection before it read the request."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A server's host and port, and the path that its API is under."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str, tls: ssl.SSLContext | None) -> Origin:
        """Read an address. ValueError if it names no host, or a port that cannot be."""
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"{url} names no host")
        secure = parts.scheme == "https"
        return cls(
            parts.hostname, parts.port or (443 if secure else 80), parts.path.rstrip("/"), tls if secure else None
        )

    @property
    def header(self) -> str:
        """Content of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(slots=True)
class Response:
    """The head of an answer, and the parts of its body as they come."""

    status: int
    headers: Mapping[str, str]
    _connection: _Connection

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body in parts. RequestError if the connection is lost before its end."""
        while not isinstance(event := await self._connection.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    async def json(self) -> Any:
        """Return the whole body, read as JSON. NotJsonError if it is none."""
        body = b"".join([part async for part in self.parts()])
        try:
            return json.loads(body)
        except ValueError:
            raise NotJsonError from None

    async def error(self) -> RequestError:
        """Return the error of a body in OpenAI's format, or of any other."""
        kind = f"HTTP {self.status}"
        try:
            body = await self.json()
            found = body["error"]
            detail = found.get("code") or found.get("type") or ""
            return RequestError(f"{kind} {detail}".strip(), self._retry_after(), str(found.get("message", "")))
        except (RequestError, KeyError, TypeError, AttributeError):
            return RequestError(kind, self._retry_after())

    def _retry_after(self) -> float | None:
        try:
            return max(0.0, float(self.headers["retry-after"]))
        except (KeyError, ValueError):  # a date is for caches
            return None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEADER_BYTES)
        self.used = False

    async def send(self, head: h11.Request, body: bytes) -> h11.Response:
        """Send a request and return the answer's head. _StaleError, RequestError."""
        try:
            self._writer.write(self._protocol.send(head) or b"")
            self._writer.write((self._protocol.send(h11.Data(body)) or b"") if body else b"")
            self._writer.write(self._protocol.send(h11.EndOfMessage()) or b"")
            await self._writer.drain()
            while not isinstance(event := await self.next_event(), h11.Response):
                pass  # 100 Continue and the like
        except (OSError, RequestError) as error:
            if self.used and self._protocol.their_state is not h11.SEND_BODY:
                raise _StaleError from error
            if isinstance(error, RequestError):
                raise
            raise RequestError("connection lost") from error
        return event

    async def next_event(self) -> Any:
        """Return h11's next event."""
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                self._protocol.receive_data(await self._reader.read(_READ_BYTES))
        except OSError as error:
            raise RequestError("connection lost") from error
        except h11.RemoteProtocolError as error:
            raise RequestError("connection lost" if self._reader.at_eof() else "not HTTP") from error
        if isinstance(event, h11.ConnectionClosed):
            raise RequestError("connection lost")
        return event

    def recycle(self) -> bool:
        """Make ready for another request. False if the connection cannot be kept."""
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
            self.used = True
            return True
        return False

    @property
    def is_closed(self) -> bool:
        """True if the server is known to have closed the connection."""
        return self._reader.at_eof()

    def close(self) -> None:
        """Close the connection without waiting."""
        self._writer.close()


@dataclass(slots=True)
class HttpClient:
    """Requests to one server. Connections are kept and used again, and there is no limit to their
    number: a limit would hold requests back unseen."""

    origin: Origin
    headers: Mapping[str, str] = field(default_factory=dict)
    repeats: bool = True
    """True if a request may be sent again when the server closes a kept connection before it reads
    the request. Another server may answer then. False: that is a RequestError."""
    _idle: list[_Connection] = field(default_factory=list)
    _lost_count: int = 0

    @asynccontextmanager
    async def request(self, path: str, body: object | None = None) -> AsyncIterator[Response]:
        """Send a request, with POST if it has a body: JSON as bytes, or what is made JSON.
        RequestError if there is no answer, and if the body breaks off."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        connection, head = await self._answered(path, content)
        kept = False
        try:
            headers = {name.decode().lower(): value.decode("latin-1") for name, value in head.headers}
            yield Response(head.status_code, headers, connection)
            kept = connection.recycle()
        finally:
            if kept:
                self._idle.append(connection)
            else:
                connection.close()

    def lost_count(self) -> int:
        """Return how many kept connections the server has closed so far."""
        self._drop_closed()
        return self._lost_count

    def close(self) -> None:
        """Close the kept connections."""
        while self._idle:
            self._idle.pop().close()

    def _drop_closed(self) -> None:
        kept, self._idle = self._idle, []
        for connection in kept:
            if connection.is_closed:
                self._drop(connection)
            else:
                self._idle.append(connection)

    def _drop(self, lost: _Connection) -> None:
        self._lost_count += 1
        lost.close()

    async def _answered(self, path: str, content: bytes) -> tuple[_Connection, h11.Response]:
        head = h11.Request(method="POST" if content else "GET", target=path, headers=self._head(content))
        while True:
            self._drop_closed()
            connection = self._idle.pop() if self._idle else await self._connected()
            try:
                return connection, await connection.send(head, content)
            except _StaleError as error:
                self._drop(connection)
                if not self.repeats:
                    raise RequestError("connection lost") from error
            except BaseException:
                connection.close()
                raise

    def _head(self, content: bytes) -> list[tuple[str, str]]:
        own = {"host": self.origin.header, "accept": "*/*", "user-agent": "slipstream"}
        if content:
            own |= {"content-type": "application/json", "content-length": str(len(content))}
        return list({**own, **self.headers}.items())

    async def _connected(self) -> _Connection:
        try:
            pair = await asyncio.open_connection(self.origin.host, self.origin.port, ssl=self.origin.tls)
        except ConnectionRefusedError as error:
            raise RequestError("connection refused") from error
        except ssl.SSLCertVerificationError as error:
            raise RequestError("TLS failed", message=error.verify_message) from error
        except ssl.SSLError as error:
            raise RequestError("TLS failed", message=error.reason or str(error)) from error
        except OSError as error:
            raise RequestError("connection failed", message=error.strerror or str(error)) from error
        return _Connection(*pair)
