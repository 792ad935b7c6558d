"""Many sequences' rounds over one bidirectional stream, the asking side: items coalesced into
messages, answers matched by key.

A stream is transport, never state. An item's error is in its result; whatever ends a stream fails
all that waits on it with StreamLostError, and the next item opens another. A peer that answers what
it was not asked loses its stream. `slipstream.rpc.item_answers` is the answering side.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import grpc

from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.channel import PEER_METADATA
from slipstream.rpc.outbox import Measured, Outbox, fits, let_answers_leave
from slipstream.rpc.parsing import unreadable
from slipstream.rpc.status import PeerError, StreamLostError, error_of_call

log = logging.getLogger(__name__)


class Keyed(Measured, Protocol):
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

_MOST_WAITING = 64
"""Items of one handle that wait for results. A newer item takes an older one's place at the peer,
which says so; of a peer that does not, the oldest is forgotten."""

_MOST_RECENT = 1024
_MOST_TWICE = 64
"""Results on one stream that come twice, beyond as many as have come once."""

_MOST_SPARE = 4096
"""Results that may still come of items that were given up."""


class ItemTooLargeError(PeerError):
    """An item that no message can hold (metadata: byte_count)."""

    def __init__(self, byte_count: int) -> None:
        super().__init__(
            Code.INVALID_ARGUMENT,
            Reason.ITEM_TOO_LARGE,
            f"an item of {byte_count:,} bytes is more than a message may hold: shorten the prompt or what the rule names",
            {"byte_count": str(byte_count)},
        )


class BadResultError(PeerError):
    """A result that cannot be understood."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Code.INTERNAL, Reason.BAD_RESULT, f"the peer's result cannot be understood: {error!r}")


class Sink(Protocol[ResultT_contra]):
    """Takes the results of one item."""

    def take(self, result: ResultT_contra) -> bool:
        """One result. True if no other follows. What it raises fails this item alone."""

    def lose(self, error: PeerError) -> None:
        """No other result follows: the item could not be sent, its result not be taken, or the
        stream has ended."""


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
            self.answer.exception()  # whoever asked may be giving up just now; that is no fault


class ItemStream(Generic[ItemT, ResultT]):
    """The asking side. One stream for each peer, opened by the first item."""

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
        """``open_call`` starts the bidirectional call, with this process's key as ``metadata``;
        ``pack`` makes a message of items, ``unpack`` results of one.

        ``on_lost`` is told of each stream that has ended by itself. An item has at most
        ``most_results``, and ``is_last`` tells which is its last. ``on_fault`` is told of what the
        peer sends that is no answer: a field, and what it would have to be.
        """
        self._open_call = partial(open_call, metadata=PEER_METADATA)
        self._pack = pack
        self._unpack = unpack
        self._on_lost = on_lost
        self._is_last = is_last
        self._most_results = most_results
        self._on_fault = on_fault
        self._waiting: dict[str, dict[int, Sink[ResultT]]] = {}
        """Sinks by handle and round, a handle's in the order in which they were asked."""
        self._recent: OrderedDict[tuple[str, int], None] = OrderedDict()
        """Items that have had their last result, the latest last."""
        self._strays = self._spare = self._twice = 0
        self._outbox: Outbox[ItemT] = Outbox()
        self._run: asyncio.Task[None] | None = None
        self._closed = False
        self.answered_count = 0
        """Streams so far that have brought something."""

    def send(self, item: ItemT, sink: Sink[ResultT]) -> None:
        """Send an item without waiting. ``sink`` gets its results until it says that one was the
        last, is told that no other follows, or is withdrawn."""
        byte_count = item.ByteSize()
        if self._closed or not fits(byte_count):
            sink.lose(_closed() if self._closed else ItemTooLargeError(byte_count))
            return
        if self._run is None:
            self._run = asyncio.create_task(self._converse())
        rounds = self._waiting.setdefault(item.handle, {})
        rounds[item.round] = sink
        if len(rounds) > _MOST_WAITING:
            self._give_up(item.handle, next(iter(rounds)))
        self._outbox.put(item, byte_count)

    def withdraw(self, item: ItemT, sink: Sink[ResultT]) -> None:
        """``sink`` gives up waiting for what ``item`` asked; nothing happens if it has had its last
        result."""
        if self._waiting.get(item.handle, {}).get(item.round) is sink:
            self._give_up(item.handle, item.round)

    async def ask(self, item: ItemT) -> ResultT:
        """Send an item and wait for its one result. ItemTooLargeError, BadResultError, or
        StreamLostError if the stream ends first."""
        sink: _OneResult[ResultT] = _OneResult()
        self.send(item, sink)
        try:
            return await sink.answer
        finally:
            self.withdraw(item, sink)

    def abandon(self, error: PeerError) -> None:
        """Give the present stream up: what waits fails with ``error``, what is still answered is
        dropped, the next item opens another."""
        if self._run is not None:
            self._run.cancel()
            self._end(error)

    async def close(self) -> None:
        """End the stream, and fail what waits and whatever is still sent."""
        self._closed = True
        run = self._run
        if run is not None:
            run.cancel()
            await asyncio.wait([run])
        if self._run is not None:  # it was cancelled before it began
            self._end(_closed())

    async def _converse(self) -> None:
        """One stream from its opening to its end, whatever ends it."""
        error: PeerError = _closed()
        try:
            error = await self._carry()
        except Exception as failure:
            log.exception("a stream failed on our side")
            error = StreamLostError(f"the stream failed on our side: {failure!r}")
        finally:
            if self._run is asyncio.current_task():  # else it was abandoned, and what waits now waits for another
                self._end(error)
        self._on_lost()

    async def _carry(self) -> PeerError:
        """Carry items and results until the peer ends the stream; returns how it did."""
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
                        self._on_fault("results", "must answer what was asked, each item at most once")
                        return StreamLostError("the peer answers what it was not asked")
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
            last = sink.take(result)
        except Exception as failure:
            log.exception("a result cannot be understood")
            self._give_up(handle, number)
            _tell(sink, BadResultError(failure))
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
        """What still comes of an item is not waited for, and is no fault."""
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
        """Fail what waits. Whoever asks again on hearing of it gets a new stream."""
        waiting, self._waiting = self._waiting, {}
        self._strays = self._spare = self._twice = 0
        self._recent.clear()
        self._outbox = Outbox()
        self._run = None
        for rounds in waiting.values():
            for sink in rounds.values():
                _tell(sink, error)


def _closed() -> StreamLostError:
    return StreamLostError("the stream was closed on our side")


def _tell(sink: Sink[Any], error: PeerError) -> None:
    """What one sink makes of it is no reason not to tell the others."""
    try:
        sink.lose(error)
    except Exception:
        log.exception("whoever waited failed on hearing %s", error)
