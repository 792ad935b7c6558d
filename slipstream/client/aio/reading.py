"""Iteration over a reply with asyncio. Written by hand, as its counterpart in ``blocking`` is."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from slipstream.client.aio.watcher import AsyncWatcher
from slipstream.client.results import Delta


class AsyncReadable:
    """The part of a reply that is iterated over."""

    def __init__(self, watcher: AsyncWatcher) -> None:
        self._watcher = watcher

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Iterate over the text with its tokens, as they come. PeerError if the turn fails, or the
        server is gone for too long."""
        try:
            while (delta := await self._watcher.next_delta()) is not None:
                yield delta
        finally:
            await self._watcher.stop_watching()

    async def __aiter__(self) -> AsyncIterator[str]:
        async with contextlib.aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                if delta.text:
                    yield delta.text
