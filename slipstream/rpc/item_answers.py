"""Many sequences' rounds over one bidirectional stream, the answering side. `slipstream.rpc.item_stream` asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from slipstream.errors import Code, SlipstreamError
from slipstream.rpc.item_stream import Keyed
from slipstream.rpc.outbox import Outbox, fits

ItemT = TypeVar("ItemT", bound=Keyed)
ResultT = TypeVar("ResultT", bound=Keyed)
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
Push = Callable[[ResultT], None]


class ResultTooLargeError(SlipstreamError):
    """A result that no message can hold (metadata: byte_count)."""

    code = Code.OUT_OF_RANGE
    reason = "RESULT_TOO_LARGE"

    @classmethod
    def of(cls, byte_count: int) -> ResultTooLargeError:
        """With what to do about it."""
        return cls(
            f"the result has {byte_count:,} bytes, more than a message may hold: ask for fewer log-probabilities",
            byte_count=byte_count,
        )


async def answer_items(
    requests: AsyncIterator[RequestT],
    items_of: Callable[[RequestT], Iterable[ItemT]],
    answer: Callable[[ItemT, Push[ResultT]], Awaitable[ResultT]],
    refuse: Callable[[ItemT, Exception], ResultT],
    pack: Callable[[list[ResultT]], ResponseT],
    draining: asyncio.Event,
) -> AsyncIterator[ResponseT]:
    """Each item in a task of its own, begun in the items' order; results are sent as they come, those that are ready together.

    Ends when every item is answered and the caller has half-closed or the server is ``draining``. ``answer`` returns an item's
    last result and may push others before it; what it raises becomes the result that ``refuse`` makes of it.
    """
    outbox: Outbox[ResultT] = Outbox()
    # A task of its own: a task group must not be left open while a generator waits to be asked for more.
    answering = asyncio.create_task(_answer_all(requests, items_of, answer, refuse, outbox, draining))
    answering.add_done_callback(lambda _: outbox.close())
    try:
        while batch := await outbox.batch():
            yield pack(batch)
        await answering
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def _answer_all(
    requests: AsyncIterator[RequestT],
    items_of: Callable[[RequestT], Iterable[ItemT]],
    answer: Callable[[ItemT, Push[ResultT]], Awaitable[ResultT]],
    refuse: Callable[[ItemT, Exception], ResultT],
    outbox: Outbox[ResultT],
    draining: asyncio.Event,
) -> None:
    async def run(item: ItemT) -> None:
        def push(result: ResultT) -> None:
            byte_count = result.ByteSize()
            if not fits(byte_count):
                raise ResultTooLargeError.of(byte_count)
            outbox.put(result, byte_count)

        try:
            push(await answer(item, push))
        except Exception as error:
            push(refuse(item, error))

    async def read(items: asyncio.TaskGroup) -> None:
        async for request in requests:
            for item in items_of(request):
                items.create_task(run(item))

    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read(group))
            drained = group.create_task(draining.wait())
            await asyncio.wait([reading, drained], return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            drained.cancel()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
