"""Messages between a service and its trial processes: a length of four bytes, then JSON."""

from __future__ import annotations

import json
from typing import IO, Any

LENGTH_BYTES = 4


def frame_of(message: dict[str, Any]) -> bytes:
    """A message as it goes through a pipe."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def length_of(head: bytes) -> int:
    """How many bytes follow a frame's head."""
    return int.from_bytes(head, "big")


def read_frame(pipe: IO[bytes]) -> dict[str, Any] | None:
    """The next message of a pipe; None at its end."""
    head = pipe.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    message: dict[str, Any] = json.loads(pipe.read(length_of(head)))
    return message
