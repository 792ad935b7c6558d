"""Many sequences' rounds over one bidirectional stream: items coalesced into messages, answers matched by key.

A stream is transport, never state. An item's error is in its result; a lost stream fails what waits on it with
StreamLostError and is opened anew by the next item.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import grpc

from slipstream.rpc.status import PeerError, StreamLostError, error_of_call


class Keyed(Protocol):
    """An item or a result: a handle and a round name it."""

    @property
    def handle(self) -> str:
        """Of the sequence."""

    @property
    def round(self) -> int:
        """Of the handle."""


ItemT = TypeVar("ItemT", bound=Keyed)
ResultT = TypeVar("ResultT", bound=Keyed)
ResultT_contra = TypeVar("ResultT_contra", contravariant=True)
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
Key = tuple[str, int]


class Sink(Protocol[ResultT_contra]):
    """Takes the results of one item."""

    def take(self, result: ResultT_contra) -> bool:
        """One result. True if no other follows."""

    def lose(self, error: PeerError) -> None:
        """No other result follows: the stream has ended."""


class _OneResult(Generic[ResultT]):
    """A sink to wait at."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()

    def take(self, result: ResultT) -> bool:
        if not self.answer.done():
            self.answer.set_result(result)
        return True

    def lose(self, error: PeerError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class ItemStream(Generic[ItemT, ResultT]):
    """The asking side. One stream for each peer, opened by the first item."""

    def __init__(
        self,
        open_call: Callable[[], Any],
        pack: Callable[[list[ItemT]], Any],
        unpack: Callable[[Any], Iterable[ResultT]],
    ) -> None:
        """``open_call`` starts the bidirectional call; ``pack`` makes a message of items, ``unpack`` results of one."""
        self._open_call = open_call
        self._pack = pack
        self._unpack = unpack
        self._waiting: dict[Key, Sink[ResultT]] = {}
        self._outbox: list[ItemT] = []
        self._wake = asyncio.Event()
        self._run: asyncio.Task[None] | None = None

    def send(self, item: ItemT, sink: Sink[ResultT]) -> None:
        """Send an item without waiting. ``sink`` gets its results until it says that one was the last, or is told of
        the loss of the stream."""
        if self._run is None or self._run.done():
            self._run = asyncio.create_task(self._converse())
        self._waiting[item.handle, item.round] = sink
        self._outbox.append(item)
        self._wake.set()

    async def ask(self, item: ItemT) -> ResultT:
        """Send an item and wait for its one result. StreamLostError or PeerError if the stream ends first."""
        sink: _OneResult[ResultT] = _OneResult()
        self.send(item, sink)
        try:
            return await sink.answer
        finally:
            if self._waiting.get((item.handle, item.round)) is sink:
                del self._waiting[item.handle, item.round]

    async def close(self) -> None:
        """End the stream."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run])

    async def _converse(self) -> None:
        call = self._open_call()
        writer = asyncio.create_task(self._write(call))
        error: PeerError = StreamLostError("the peer ended the stream")
        try:
            async for response in call:
                for result in self._unpack(response):
                    key = (result.handle, result.round)
                    sink = self._waiting.get(key)
                    if sink is not None and sink.take(result):
                        self._waiting.pop(key, None)
        except grpc.aio.AioRpcError as failure:
            error = StreamLostError(str(error_of_call(failure)))
        finally:
            writer.cancel()
            call.cancel()
            self._fail_all(error)

    async def _write(self, call: Any) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                items, self._outbox = self._outbox, []
                if items:
                    await call.write(self._pack(items))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            call.cancel()  # the reader learns why

    def _fail_all(self, error: PeerError) -> None:
        self._outbox.clear()
        waiting, self._waiting = self._waiting, {}
        for sink in waiting.values():
            sink.lose(error)


async def answer_items(
    requests: AsyncIterator[RequestT],
    items_of: Callable[[RequestT], Iterable[ItemT]],
    answer: Callable[[ItemT, Callable[[ResultT], None]], Awaitable[ResultT]],
    pack: Callable[[list[ResultT]], ResponseT],
    draining: asyncio.Event,
) -> AsyncIterator[ResponseT]:
    """The answering side: each item in a task of its own, results sent as they come, all that are ready in one message.

    Ends when every item is answered and the caller has half-closed or the server is ``draining``. ``answer`` returns an item's
    last result, may push others before it, and must not raise.
    """
    results: list[ResultT] = []
    ready = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    def push(result: ResultT) -> None:
        results.append(result)
        ready.set()

    async def run(item: ItemT) -> None:
        try:
            results.append(await answer(item, push))
        finally:
            tasks.discard(asyncio.current_task())
            ready.set()

    async def read() -> None:
        async for request in requests:
            for item in items_of(request):
                tasks.add(asyncio.create_task(run(item)))

    reader = asyncio.create_task(read())
    drained = asyncio.create_task(draining.wait())
    for ending in (reader, drained):
        ending.add_done_callback(lambda _: ready.set())
    try:
        while not (reader.done() or drained.done()) or tasks or results:
            await ready.wait()
            ready.clear()
            if results:
                batch = results[:]
                results.clear()
                yield pack(batch)
        if reader.done():
            reader.result()
    finally:
        reader.cancel()
        drained.cancel()
        for task in tasks:
            task.cancel()
