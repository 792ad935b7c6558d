"""Reads a turn's events over one stream after another, from any task, and ends the turn if it is
left early."""

from __future__ import annotations

import asyncio
import contextlib

import grpc

from slipstream.client.aio.connection import AsyncConnection
from slipstream.client.ending import FAREWELL_SECONDS, keep_until_done, reply_closed
from slipstream.client.results import Delta
from slipstream.client.watching import Watching
from slipstream.rpc.status import PeerError, StreamLostError, error_of_call


class AsyncWatcher:
    """The asyncio shell of a Watching. Its stream has begun when this is made."""

    def __init__(self, connection: AsyncConnection, watching: Watching) -> None:
        self.watching = watching
        self._connection = connection
        self._reading = asyncio.Lock()
        self._ending = asyncio.Lock()
        self._closed = asyncio.Event()
        self._call = connection.watch(watching)
        connection.running.add(self)

    @property
    def running(self) -> bool:
        """Whether there are events to come."""
        return not (self.watching.ended or self.watching.refused or self._closed.is_set())

    async def next_delta(self) -> Delta | None:
        """What comes next; None at the end. PeerError if the turn failed, cannot be watched, or was
        left."""
        while True:
            async with self._reading:  # for one event at a time: who wants to cancel waits for the first
                if self.watching.deltas:
                    return self.watching.deltas.popleft()
                if self.watching.ended:
                    break
                await self._receive()
        if error := self.watching.error():
            raise error
        return None

    async def cancel(self, timeout: float | None) -> None:
        """End the turns early; their last events still come. PeerError if the server cannot be
        told."""
        while self.running and not self.watching.known:
            async with self._reading:
                if not self.watching.known:
                    await self._receive()  # what comes first says which turn it is
        if self.running:
            for request in self.watching.cancellations():
                attempts = self._connection.attempts(timeout)
                await self._connection.call(self._connection.stub.CancelTurn, request, attempts)

    async def end(self, patience: float = FAREWELL_SECONDS, *, cancelling: bool = True) -> None:
        """Watch no more, and end the turns at the server if they are ours and still run. Raises
        nothing of the server's; returns when whoever called first is done."""
        async with self._ending:
            if not self._closed.is_set():
                cancelling = cancelling and self.running and self.watching.owned
                self._closed.set()
                if not self.watching.ended:
                    self._call.cancel()
                if cancelling:
                    await self._connection.cancel_turns(self.watching, patience)
            self._connection.running.discard(self)

    async def _receive(self) -> None:
        """Take one event in, or begin another stream."""
        if self._closed.is_set():
            raise reply_closed()
        try:
            response = await self._call.read()
            if response is not grpc.aio.EOF:
                self.watching.take(response)
                if self.watching.ended:
                    keep_until_done(self._call)
                return
            lost: PeerError = StreamLostError("the server ended the stream before the turn's end")
        except StreamLostError as gap:
            lost = gap
        except grpc.aio.AioRpcError as error:
            if self.watching.ended:
                return
            lost = error_of_call(error)
        except asyncio.CancelledError:
            if not self._closed.is_set() or _being_cancelled():
                raise
            raise reply_closed() from None
        await self._begin_again(lost)

    async def _begin_again(self, lost: PeerError) -> None:
        if self._closed.is_set():
            raise reply_closed()
        delay = self.watching.lost(lost)
        self._call.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), delay)
        if self._closed.is_set():
            raise reply_closed()
        self._call = self._connection.watch(self.watching)


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
