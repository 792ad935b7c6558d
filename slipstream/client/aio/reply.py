"""A turn in progress."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType

from slipstream.client.aio.watcher import AsyncWatcher
from slipstream.client.results import Delta, Result


class AsyncReply:
    """One turn in progress: iterate over its text; ``result`` is whole once the iteration has
    ended.

    Leaving early ends the turn at the server: a ``break`` out of the loop (a moment later, in a
    task of the event loop's), an exception in it or the task's cancellation, ``close``, or the end
    of an ``async with`` block. What the turn has said so far stays in its session. A reply that
    ``watch`` gave only looks on: leaving it leaves the turn alone, and so does ``detach``. A lost
    connection is made anew and goes on where it was.
    """

    def __init__(self, watcher: AsyncWatcher) -> None:
        self._watcher = watcher

    @property
    def result(self) -> Result:
        """As far as it has come."""
        return self._watcher.watching.turns[0].result

    @property
    def request_id(self) -> str:
        """Sent again with the same content, the server knows the turn by it. Empty if the reply
        only looks on."""
        return self._watcher.watching.request_id

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Text with its tokens, as they come. PeerError if the turn fails, or the server is gone
        for too long."""
        try:
            while (delta := await self._watcher.next_delta()) is not None:
                yield delta
        finally:
            await self._watcher.end()

    async def __aiter__(self) -> AsyncIterator[str]:
        async with contextlib.aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                if delta.text:
                    yield delta.text

    async def wait(self) -> Result:
        """Run to the end and return the result. PeerError as for ``deltas``."""
        async with contextlib.aclosing(self.deltas()) as deltas:
            async for _ in deltas:
                pass
        return self.result

    async def cancel(self, *, timeout: float | None = None) -> None:
        """End the turn early; the iteration goes on to its last events, and it then has finished as
        CANCELLED. Callable from another task. PeerError if the server cannot be told."""
        await self._watcher.cancel(timeout)

    async def detach(self) -> None:
        """Read no further, and let the turn run on: ``watch`` takes it up again."""
        await self._watcher.end(cancelling=False)

    async def close(self) -> None:
        """Read no further. The turn ends, if the reply does not only look on."""
        await self._watcher.end()

    async def __aenter__(self) -> AsyncReply:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
