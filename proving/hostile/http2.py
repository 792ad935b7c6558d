"""HTTP/2 frame by frame over a plain socket, to send what a client library refuses to send."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

import hpack

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_BYTES = 16384

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEAD = 9
_LARGEST_WINDOW = 2**31 - 1
_INITIAL_WINDOW_SETTING = 4
_CANCEL = 8
_NEVER_KEPT, _KEPT = 0x00, 0x40
"""First byte of a literal field (RFC 7541): the receiver drops the field, or adds it to its
table."""

NEWEST = b"\xbe"
"""The newest field of the receiver's table again, in one byte."""

Header = tuple[str, str]


def literal(name: str, value: str, *, kept: bool = False) -> bytes:
    """Return a header field word for word. The receiver adds it to its table if ``kept``."""
    text = [one.encode() for one in (name, value)]
    return bytes([_KEPT if kept else _NEVER_KEPT]) + b"".join(_length(len(one)) + one for one in text)


def grpc_message(data: bytes, *, compressed: bool = False) -> bytes:
    """Return a message with gRPC's prefix."""
    return struct.pack(">BI", compressed, len(data)) + data


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _length(count: int) -> bytes:
    """Return an integer with a prefix of seven bits."""
    if count < 127:
        return bytes([count])
    parts, left = [127], count - 127
    while left >= 128:
        parts.append(left & 127 | 128)
        left >>= 7
    return bytes([*parts, left])


class RawConnection:
    """One connection to a service that speaks plaintext. Use it as a context."""

    def __init__(self, address: str, timeout: float = 20) -> None:
        """Connect. OSError if the service does not accept the connection."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout)
        self._timeout = timeout
        self._decoder = hpack.Decoder()
        self._buffer = b""
        self._next_stream = 1
        settings = struct.pack(">HI", _INITIAL_WINDOW_SETTING, _LARGEST_WINDOW)
        update = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", _LARGEST_WINDOW - 65535))
        try:
            self.send(_PREFACE, frame(SETTINGS, 0, 0, settings), update)
        except OSError:
            self._socket.close()
            raise
        self.settings: dict[int, int] = {}
        """Settings of the service, as far as they have been read."""

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(b"".join(parts))

    def open(self, method: str, *fields: Header, block: bytes = b"") -> int:
        """Open a stream for a call, and return its number; ``block`` is added to its header fields
        as it is."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self.send(frame(HEADERS, END_HEADERS, stream, _call(method, fields) + block))
        return stream

    def open_many(self, method: str, count: int, block: bytes = b"") -> None:
        """Open streams without further frames, as fast as the socket accepts them."""
        head = _call(method, ()) + block
        for _ in range(count):
            self.send(frame(HEADERS, END_HEADERS, self._next_stream, head))
            self._next_stream += 2

    def say(self, stream: int, message: bytes) -> None:
        """Send a message with its prefix, and end this side of the stream."""
        parts = [message[begin : begin + FRAME_BYTES] for begin in range(0, len(message), FRAME_BYTES)]
        for index, part in enumerate(parts):
            self.send(frame(DATA, END_STREAM if index == len(parts) - 1 else 0, stream, part))

    def reset(self, stream: int) -> None:
        """End a stream from this side."""
        self.send(frame(RESET, 0, stream, struct.pack(">I", _CANCEL)))

    def read(self) -> tuple[int, int, int, bytes]:
        """Return the next frame: kind, flags, stream, payload."""
        head = self._take(_FRAME_HEAD)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        payload = self._take(int.from_bytes(head[:3], "big"))
        if kind == SETTINGS and not flags & ACK:
            self.settings |= dict(struct.iter_unpack(">HI", payload))
            self.send(frame(SETTINGS, ACK, 0))
        if kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        return kind, flags, stream, payload

    def meet(self) -> None:
        """Read the service's settings and acknowledge them, as an honest client does."""
        while not self.settings:
            self.read()

    def outcome(self, stream: int) -> dict[str, str]:
        """Return a call's header and trailer fields, with ``reset`` or ``goaway`` among them where
        the service cut it off."""
        found: dict[str, str] = {}
        while True:
            kind, flags, about, payload = self.read()
            if kind == GOAWAY:
                return found | {"goaway": str(int.from_bytes(payload[4:8], "big"))}
            if kind == HEADERS:  # of other streams too: the table is the connection's
                fields = dict(_texts(self._decoder.decode(payload)))
                found |= fields if about == stream else {}
            if about == stream and kind == RESET:
                return found | {"reset": str(int.from_bytes(payload, "big"))}
            if about == stream and kind in (DATA, HEADERS) and flags & END_STREAM:
                return found

    def skip(self) -> None:
        """Read all frames that have arrived, and answer those that need an answer."""
        self._socket.setblocking(False)
        try:
            while True:
                self._buffer += self._socket.recv(65536) or _fail_closed()
        except BlockingIOError:
            pass
        finally:
            self._socket.settimeout(self._timeout)
        while len(self._buffer) >= _FRAME_HEAD + int.from_bytes(self._buffer[:3], "big"):
            self.read()

    def cut(self) -> None:
        """End the connection from any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def seconds_until_closed(self) -> float:
        """Return the seconds until the service closes the connection. Its frames are not answered
        meanwhile."""
        started = time.monotonic()
        try:
            while self._socket.recv(FRAME_BYTES):
                pass
        except ConnectionError:
            pass
        return time.monotonic() - started

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._buffer += self._socket.recv(65536) or _fail_closed()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


def _fail_closed() -> bytes:
    raise EOFError("the service has closed the connection")


def _call(method: str, fields: Iterable[Header]) -> bytes:
    """Return the header fields of a call, none of which the receiver stores."""
    own = ((":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "hostile"))
    kind = (("te", "trailers"), ("content-type", "application/grpc"))
    return b"".join(literal(name, value) for name, value in (*own, *kind, *fields))


def _texts(fields: Iterable[tuple[str | bytes, str | bytes]]) -> Iterable[Header]:
    return ((str(name), str(value)) for name, value in fields)
