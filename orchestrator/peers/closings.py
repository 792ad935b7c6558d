"""Items that close handles. They are like other items, but no round waits for them until the stream
closes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Generic

from slipstream.rpc.item_results import ItemT, ResultT
from slipstream.rpc.item_stream import ItemStream
from slipstream.rpc.status import PeerError

log = logging.getLogger(__name__)

_FLUSH_SECONDS = 2.0
_MOST = 8192
"""Most items in transit. If a peer does not answer, the oldest ones are forgotten, and their leases
end."""
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_SECONDS = 0.25, 15.0, 600.0


class Closings(Generic[ItemT, ResultT]):
    """The items on one stream that close handles. An item that is lost with its stream is sent
    again, after growing pauses, until the lease must have ended."""

    def __init__(self, stream: ItemStream[ItemT, ResultT]) -> None:
        self._stream = stream
        self._on_their_way: dict[_Closing[ItemT, ResultT], None] = {}
        self._arrived = asyncio.Event()

    def send(self, item: ItemT) -> None:
        """Send an item that closes its handle."""
        closing = _Closing(self, item)
        self._on_their_way[closing] = None
        if len(self._on_their_way) > _MOST:
            oldest = next(iter(self._on_their_way))
            self._stream.withdraw(oldest.item, oldest)
            self.forget(oldest)
        self._stream.send(item, closing)

    async def flush(self) -> None:
        """Wait until all have arrived, but not long for a peer that is away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                while self._on_their_way:
                    self._arrived.clear()
                    await self._arrived.wait()

    def send_again(self, closing: _Closing[ItemT, ResultT], pause: float) -> None:
        """Send an item again after a pause. It was lost with its stream."""
        asyncio.get_running_loop().call_later(pause, self._send_unless_forgotten, closing)

    def _send_unless_forgotten(self, closing: _Closing[ItemT, ResultT]) -> None:
        if closing in self._on_their_way:
            self._stream.send(closing.item, closing)

    def forget(self, closing: _Closing[ItemT, ResultT]) -> None:
        """Drop a closing item: nothing is left to do for it."""
        self._on_their_way.pop(closing, None)
        self._arrived.set()


class _Closing(Generic[ItemT, ResultT]):
    """The sink of one closing item."""

    def __init__(self, closings: Closings[ItemT, ResultT], item: ItemT) -> None:
        self.item = item
        self._closings = closings
        self._begun = time.monotonic()
        self._pause = 0.0

    def receive(self, _: ResultT) -> bool:
        self._closings.forget(self)
        return True

    def fail(self, error: PeerError) -> None:
        if time.monotonic() - self._begun < _LONGEST_SECONDS:
            self._closings.send_again(self, self._pause)
            self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))
            return
        log.debug("handle %s could not be given back: %s", self.item.handle, error)
        self._closings.forget(self)
