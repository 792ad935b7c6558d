"""Asking side of a bidirectional stream that carries the rounds of many sequences.

Items are coalesced into messages, and results are matched by handle and round. A stream holds no
state. An item's error is in its result. When a stream ends, all waiting items fail with
StreamLostError, and the next item opens another stream. A peer that sends results without an item
loses its stream. `slipstream.rpc.item_answers` is the answering side.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic

import grpc

from slipstream.rpc.channel import PEER_METADATA
from slipstream.rpc.item_results import BadResultError, ItemT, ItemTooLargeError, OneResult, ResultT, Sink
from slipstream.rpc.outbox import Outbox, fits, let_answers_leave
from slipstream.rpc.parsing import unreadable
from slipstream.rpc.status import PeerError, StreamLostError, error_of_call

log = logging.getLogger(__name__)

_MOST_WAITING = 64
"""Most items of one handle that wait for results. A newer item replaces an older one at the peer,
which answers that. If a peer does not, the oldest item is forgotten."""

_MOST_RECENT = 1024
_MOST_TWICE = 64
"""Most duplicate results on one stream, beyond the number of first results."""

_MOST_SPARE = 4096
"""Most results that may still come for items that were given up."""


class ItemStream(Generic[ItemT, ResultT]):
    """Stream of items to one peer, which the first item opens."""

    def __init__(
        self,
        open_call: Callable[..., Any],
        pack: Callable[[list[ItemT]], Any],
        unpack: Callable[[Any], Iterable[ResultT]],
        on_lost: Callable[[], None] = lambda: None,
        *,
        is_last: Callable[[ResultT], bool] = lambda result: True,
        most_results: int = 1,
        on_fault: Callable[[str, str], None] = lambda field, requirement: None,
    ) -> None:
        """``open_call`` starts the bidirectional call, with this process's key as ``metadata``.
        ``pack`` makes a message of items, ``unpack`` makes results of a message.

        ``on_lost`` is called when a stream has ended by itself. An item has at most
        ``most_results``, and ``is_last`` recognises the last one. ``on_fault`` is called with a
        field and its requirement when the peer sends an invalid answer.
        """
        self._open_call = partial(open_call, metadata=PEER_METADATA)
        self._pack = pack
        self._unpack = unpack
        self._on_lost = on_lost
        self._is_last = is_last
        self._most_results = most_results
        self._on_fault = on_fault
        self._waiting: dict[str, dict[int, Sink[ResultT]]] = {}
        """Sinks by handle and round, in the order of their items."""
        self._recent: OrderedDict[tuple[str, int], None] = OrderedDict()
        """Items that have had their last result, the most recent last."""
        self._strays = self._spare = self._twice = 0
        self._outbox: Outbox[ItemT] = Outbox()
        self._run: asyncio.Task[None] | None = None
        self._closed = False
        self.answered_count = 0
        """Number of streams that have brought a result."""

    def send(self, item: ItemT, sink: Sink[ResultT]) -> None:
        """Send an item without waiting. ``sink`` receives results until the last one, an error, or
        its withdrawal."""
        byte_count = item.ByteSize()
        if self._closed or not fits(byte_count):
            sink.fail(_closed() if self._closed else ItemTooLargeError(byte_count))
            return
        if self._run is None:
            self._run = asyncio.create_task(self._converse())
        rounds = self._waiting.setdefault(item.handle, {})
        rounds[item.round] = sink
        if len(rounds) > _MOST_WAITING:
            self._give_up(item.handle, next(iter(rounds)))
        self._outbox.put(item, byte_count)

    def tell(self, item: ItemT) -> None:
        """Send an item that has no result. Does nothing without a stream: what the item would
        change has ended with it."""
        if self._run is not None and not self._closed:
            self._outbox.put(item, item.ByteSize())

    def withdraw(self, item: ItemT, sink: Sink[ResultT]) -> None:
        """Stop waiting for the results of ``item``. Does nothing after the last result."""
        if self._waiting.get(item.handle, {}).get(item.round) is sink:
            self._give_up(item.handle, item.round)

    async def ask(self, item: ItemT) -> ResultT:
        """Send an item and return its one result. ItemTooLargeError, BadResultError, or
        StreamLostError if the stream ends first."""
        sink: OneResult[ResultT] = OneResult()
        self.send(item, sink)
        try:
            return await sink.answer
        finally:
            self.withdraw(item, sink)

    def abandon(self, error: PeerError) -> None:
        """Give up the current stream. Waiting items fail with ``error``, later results are dropped,
        and the next item opens another stream."""
        if self._run is not None:
            self._run.cancel()
            self._end(error)

    async def close(self) -> None:
        """End the stream, and fail all waiting and later items."""
        self._closed = True
        run = self._run
        if run is not None:
            run.cancel()
            await asyncio.wait([run])
        if self._run is not None:  # it was cancelled before it started
            self._end(_closed())

    async def _converse(self) -> None:
        """Run one stream from its opening to its end."""
        error: PeerError = _closed()
        try:
            error = await self._carry()
        except Exception as failure:
            log.exception("a stream failed on our side")
            error = StreamLostError(f"the stream failed on our side: {failure!r}")
        finally:
            if self._run is asyncio.current_task():  # else it was abandoned, and items wait for another stream
                self._end(error)
        self._on_lost()

    async def _carry(self) -> PeerError:
        """Carry items and results until the stream ends; return the error that ended it."""
        call = self._open_call()
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write(call, self._outbox))
                error = await self._read(call)
                writing.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            call.cancel()
        return error

    async def _read(self, call: Any) -> PeerError:
        answered = False
        try:
            async for response in call:
                if not answered:
                    answered = True
                    self.answered_count += 1
                for result in self._unpack(response):
                    self._hand_over(result)
                    if self._strays > self._spare or self._twice > _MOST_TWICE:
                        self._on_fault("results", "must answer items that were sent, each item at most once")
                        return StreamLostError("the peer sends results without an item")
                await let_answers_leave()
        except grpc.aio.AioRpcError as failure:
            if (requirement := unreadable(failure)) is not None:
                self._on_fault("message", requirement)
            return StreamLostError(str(error_of_call(failure)))
        return StreamLostError("the peer ended the stream")

    def _hand_over(self, result: ResultT) -> None:
        handle, number = result.handle, result.round
        sink = self._waiting.get(handle, {}).get(number)
        if sink is None:
            if (handle, number) in self._recent:
                self._twice += 1
            else:
                self._strays += 1
            return
        try:
            last = sink.receive(result)
        except Exception as failure:
            log.exception("a result cannot be understood")
            self._give_up(handle, number)
            _fail_sink(sink, BadResultError(failure))
            return
        if last and self._is_last(result):
            self._forget(handle, number)
            self._twice = max(0, self._twice - 1)
            self._recent[handle, number] = None
            if len(self._recent) > _MOST_RECENT:
                self._recent.popitem(last=False)
        elif last:
            self._give_up(handle, number)

    def _give_up(self, handle: str, number: int) -> None:
        """Stop waiting for an item. Results that still come for it are no fault."""
        self._forget(handle, number)
        self._spare = min(self._spare + self._most_results, self._strays + _MOST_SPARE)

    def _forget(self, handle: str, number: int) -> None:
        rounds = self._waiting.get(handle)
        if rounds is not None and rounds.pop(number, None) is not None and not rounds:
            del self._waiting[handle]

    async def _write(self, call: Any, outbox: Outbox[ItemT]) -> None:
        try:
            while True:
                await call.write(self._pack(await outbox.batch()))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call is over, and the reader learns why

    def _end(self, error: PeerError) -> None:
        """Fail all waiting items. An item that is sent on this error opens a new stream."""
        waiting, self._waiting = self._waiting, {}
        self._strays = self._spare = self._twice = 0
        self._recent.clear()
        self._outbox = Outbox()
        self._run = None
        for rounds in waiting.values():
            for sink in rounds.values():
                _fail_sink(sink, error)


def _closed() -> StreamLostError:
    return StreamLostError("the stream was closed on our side")


def _fail_sink(sink: Sink[Any], error: PeerError) -> None:
    """Pass an error to one sink. An exception of that sink must not reach the others."""
    try:
        sink.fail(error)
    except Exception:
        log.exception("the receiver of a result failed on an error: %s", error)
