"""Reads a turn's events over one stream after another, and ends the turn if it is left early."""

from __future__ import annotations

from slipstream.client.aio.connection import AsyncConnection
from slipstream.client.aio.event_loop import AsyncEvent, AsyncLock, RpcError, peer_error_of, read_event, sleep
from slipstream.client.ending import FAREWELL_SECONDS, keep_until_done, reply_closed
from slipstream.client.results import Delta
from slipstream.client.watching import Watching
from slipstream.rpc.status import PeerError, StreamLostError

_LOOK_SECONDS = 0.05
"""Seconds between looks at whether another reader has learnt which turn it is."""


class AsyncWatcher:
    """The I/O of a `Watching`. Its stream has begun when the watcher is made. Several readers may
    use it."""

    def __init__(self, connection: AsyncConnection, watching: Watching) -> None:
        self.watching = watching
        self._connection = connection
        self._reading = AsyncLock()
        self._starting = AsyncLock()
        self._ending = AsyncLock()
        self._closed = AsyncEvent()
        self._call = connection.begin_stream(watching)
        connection.running.add(self)

    @property
    def running(self) -> bool:
        """True if there are events to come."""
        return not (self.watching.ended or self.watching.refused or self._closed.is_set())

    async def next_delta(self) -> Delta | None:
        """Return what comes next, None at the end. PeerError if the turn failed, cannot be watched,
        or was left."""
        while True:
            async with self._reading:  # for one event at a time: a reader that wants to cancel waits for the first
                if self.watching.deltas:
                    return self.watching.deltas.popleft()
                if self.watching.ended:
                    break
                await self._receive()
        if error := self.watching.error():
            raise error
        return None

    async def wait_until_begun(self) -> None:
        """Wait until the server has begun all turns. PeerError if it refuses the request."""
        while not (self.watching.known or self.watching.ended):
            async with self._reading:  # another reader may take the event meanwhile
                if not (self.watching.known or self.watching.ended):
                    await self._receive()

    async def cancel_turns(self, timeout: float | None) -> None:
        """Cancel the turns. Their last events still come. PeerError if the server cannot be
        told."""
        while self.running and not self.watching.known:
            if not await self._reading.try_acquire():
                await sleep(_LOOK_SECONDS)
                continue
            try:
                if not self.watching.known:
                    await self._receive()  # what comes first says which turn it is
            finally:
                self._reading.release()
        if self.running:
            for request in self.watching.cancellations():
                attempts = self._connection.attempts(timeout)
                await self._connection.call(self._connection.stub.CancelTurn, request, attempts)

    async def stop_watching(self, patience: float = FAREWELL_SECONDS, *, cancelling: bool = True) -> None:
        """Watch no more. Cancel the turns at the server if they are ours and still run, within
        ``patience`` seconds.

        Raises no error of the server's. A second call returns when the first one is done.
        """
        async with self._ending:
            if not self._closed.is_set():
                cancelling = cancelling and self.running and self.watching.owned
                self._closed.set()
                if not self.watching.ended:
                    async with self._starting:
                        self._call.cancel()
                if cancelling:
                    await self._connection.cancel_turns(self.watching, patience)
            self._connection.running.discard(self)

    async def _receive(self) -> None:
        """Take one event in, or begin another stream."""
        if self._closed.is_set():
            raise reply_closed()
        try:
            response = await read_event(self._call)
            if response is not None:
                self.watching.take_response(response)
                if self.watching.ended:
                    keep_until_done(self._call)
                return
            lost: PeerError = StreamLostError("the server ended the stream before the turn's end")
        except StreamLostError as gap:
            lost = gap
        except RpcError as error:
            if self.watching.ended:
                return
            lost = peer_error_of(error)
        await self._begin_again(lost)

    async def _begin_again(self, lost: PeerError) -> None:
        if self._closed.is_set():
            raise reply_closed()
        delay = self.watching.delay_after(lost)
        self._call.cancel()
        if await self._closed.wait_for(delay):
            raise reply_closed()
        async with self._starting:
            if not self._closed.is_set():
                self._call = self._connection.begin_stream(self.watching)
