"""What waits to be sent, how much of it one message may hold, and that it leaves before more is
read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from types import coroutine
from typing import Generic, Protocol, TypeVar

from slipstream.rpc.channel import MAX_MESSAGE_BYTES

BATCH_BYTES = 4 * 2**20
"""Of items in one message, unless one alone is larger: enough to coalesce, and no peer's memory or
limit is strained."""

ANSWER_BATCH_BYTES = 2**20
"""Of results in one message, the same."""

_ENVELOPE_BYTES = 64
"""More than what a message adds to a part: a tag and a length."""


class Measured(Protocol):
    """A part of a message."""

    def ByteSize(self) -> int:
        """On the wire."""


T = TypeVar("T", bound=Measured)


def fits(byte_count: int, most: int = MAX_MESSAGE_BYTES) -> bool:
    """Whether a part of this size can travel at all, in messages of ``most`` bytes."""
    return byte_count + _ENVELOPE_BYTES <= most


@coroutine
def let_answers_leave() -> Generator[None]:
    """Let go on what waited for a message that has been read, and then what sends what came of
    that. To begin to read the next one takes grpc as long as to send an answer, and nothing waits
    for it."""
    yield
    yield


class Outbox(Generic[T]):
    """Parts in order, handed out in batches to one who waits: all that has gathered, as far as a
    message should hold it."""

    def __init__(self, batch_bytes: int = BATCH_BYTES) -> None:
        self._batch_bytes = batch_bytes
        self._parts: deque[tuple[T, int]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, part: T, byte_count: int) -> None:
        """Add a part; one that `fits`."""
        self._parts.append((part, byte_count))
        self._wake()

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True
        self._wake()

    async def batch(self) -> list[T]:
        """Wait for parts and take them, as many as one message should hold; empty once it is closed
        and nothing is left."""
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
