"""Messages between a service and its trial processes: a length of four bytes, then JSON, or a
tokenizer's own bytes."""

from __future__ import annotations

import json
from typing import IO, Any

LENGTH_BYTES = 4


def encode_frame(message: dict[str, Any]) -> bytes:
    """A message as it goes through a pipe."""
    body = json.dumps(message).encode()
    return encode_length(len(body)) + body


def encode_length(length: int) -> bytes:
    """What says that so many bytes follow."""
    return length.to_bytes(LENGTH_BYTES, "big")


def decode_length(head: bytes) -> int:
    """How many bytes follow a frame's head."""
    return int.from_bytes(head, "big")


def read_frame(pipe: IO[bytes]) -> dict[str, Any] | None:
    """The next message of a pipe; None at its end."""
    body = read_bytes(pipe)
    if body is None:
        return None
    message: dict[str, Any] = json.loads(body)
    return message


def read_bytes(pipe: IO[bytes]) -> bytes | None:
    """What the next head announces; None at the pipe's end."""
    head = pipe.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = decode_length(head)
    body = pipe.read(length)
    return body if len(body) == length else None
