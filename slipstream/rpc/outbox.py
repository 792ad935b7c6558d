"""Queue of items or results to send, in batches that fit into one message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from types import coroutine
from typing import Generic, Protocol, TypeVar

from slipstream.rpc.channel import MAX_MESSAGE_BYTES

BATCH_BYTES = 4 * 2**20
"""Bytes of items in one message, unless one item is larger. A batch this large coalesces well and
stays far below the limits of a peer."""

ANSWER_BATCH_BYTES = 2**20
"""Bytes of results in one message, unless one result is larger."""

_ENVELOPE_BYTES = 64
"""Upper bound of the bytes that a message adds to a part: a tag and a length."""


class Measured(Protocol):
    """A part of a message."""

    def ByteSize(self) -> int:
        """Return the size on the wire."""


T = TypeVar("T", bound=Measured)


def fits(byte_count: int, most: int = MAX_MESSAGE_BYTES) -> bool:
    """Return True if a part of this size fits into a message of ``most`` bytes."""
    return byte_count + _ENVELOPE_BYTES <= most


@coroutine
def let_answers_leave() -> Generator[None]:
    """Let other tasks run twice: those that waited for a message, then those that send answers.

    grpc needs as long to begin to read the next message as to send an answer, and no task waits for
    that message yet.
    """
    yield
    yield


class Outbox(Generic[T]):
    """Queue of parts with one reader, which takes all waiting parts that fit into one message."""

    def __init__(self, batch_bytes: int = BATCH_BYTES) -> None:
        self._batch_bytes = batch_bytes
        self._parts: deque[tuple[T, int]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, part: T, byte_count: int) -> None:
        """Add a part that `fits`."""
        self._parts.append((part, byte_count))
        self._wake()

    def close(self) -> None:
        """End the queue: no more parts come."""
        self._closed = True
        self._wake()

    async def batch(self) -> list[T]:
        """Wait for parts; return as many as fit into one message. Empty if the queue is closed and
        has no parts left."""
        while not self._parts and not self._closed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        batch: list[T] = []
        left = self._batch_bytes
        while self._parts and (not batch or self._parts[0][1] <= left):
            part, byte_count = self._parts.popleft()
            batch.append(part)
            left -= byte_count
        return batch

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
