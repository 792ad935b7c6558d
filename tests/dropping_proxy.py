"""A TCP proxy that drops its connections when told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType


class DroppingProxy:
    """Use as a context. ``drop`` cuts every connection, now; ``refusing`` cuts new ones too."""

    def __init__(self, upstream: str) -> None:
        self.address = ""
        self.refusing = False
        self.connection_count = 0
        self._upstream = upstream.rsplit(":", 1)
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dropping-proxy")

    def drop(self) -> None:
        """Cut every connection, in both directions."""

        async def cut() -> None:
            for writer in tuple(self._writers):
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result()

    def __enter__(self) -> DroppingProxy:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._connect, "127.0.0.1", 0)

    async def _stop(self) -> None:
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        self.connection_count += 1
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        self._writers |= {writer, up_writer}
        await asyncio.gather(_carry(reader, up_writer), _carry(up_reader, writer))
        self._writers -= {writer, up_writer}


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
