"""A simulated network in one process: bytes are passed on in order after a set delay, in both
directions."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

from slipstream.cli.local import free_address

_CHUNK_BYTES = 64 * 1024


class Link:
    """Listens on ``address`` and relays connections to ``upstream``. Each direction takes half of
    ``round_trip`` seconds. Use it as a context. The delay may change at any time."""

    def __init__(self, upstream: str, round_trip: float = 0.0) -> None:
        self.address = free_address()
        self.round_trip = round_trip
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)

    def __enter__(self) -> Link:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _listen(self) -> None:
        host, _, port = self.address.rpartition(":")
        await asyncio.start_server(self._connect, host, int(port))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._upstream.rpartition(":")
        try:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._carry(reader, up_writer), self._carry(up_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                self._loop.call_later(self.round_trip / 2, writer.write, data)
        self._loop.call_later(self.round_trip / 2, writer.close)
