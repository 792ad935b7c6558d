"""Messages between a service and its trial processes: a length of four bytes, then JSON, or a
tokenizer's bytes."""

from __future__ import annotations

import json
from typing import IO, Any

LENGTH_BYTES = 4


def encode_frame(message: dict[str, Any]) -> bytes:
    """Return a message with its length, ready for a pipe."""
    body = json.dumps(message).encode()
    return encode_length(len(body)) + body


def encode_length(length: int) -> bytes:
    """Return the four bytes that announce ``length`` bytes."""
    return length.to_bytes(LENGTH_BYTES, "big")


def decode_length(head: bytes) -> int:
    """Return the number of bytes that a frame's head announces."""
    return int.from_bytes(head, "big")


def read_frame(pipe: IO[bytes]) -> dict[str, Any] | None:
    """Return the next message of a pipe, or None at its end."""
    body = read_bytes(pipe)
    if body is None:
        return None
    message: dict[str, Any] = json.loads(body)
    return message


def read_bytes(pipe: IO[bytes]) -> bytes | None:
    """Return the bytes that the next head announces, or None at the pipe's end."""
    head = pipe.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = decode_length(head)
    body = pipe.read(length)
    return body if len(body) == length else None
