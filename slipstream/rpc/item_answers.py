"""Answering side of a bidirectional stream that carries the rounds of many sequences.

`slipstream.rpc.item_stream` is the asking side.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

import grpc

from slipstream.agreed import MAX_ANSWER_BYTES, PEER_KEY
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.item_results import Keyed
from slipstream.rpc.outbox import ANSWER_BATCH_BYTES, Outbox, fits, let_answers_leave

ItemT = TypeVar("ItemT", bound=Keyed)
ResultT = TypeVar("ResultT", bound=Keyed)
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class ResultTooLargeError(SlipstreamError):
    """The result does not fit into a message (metadata: byte_count)."""

    reason = Reason.RESULT_TOO_LARGE

    @classmethod
    def for_size(cls, byte_count: int) -> ResultTooLargeError:
        """Return the error with advice."""
        return cls(
            f"the result has {byte_count:,} bytes, more than a message may hold: ask for fewer log-probabilities",
            byte_count=byte_count,
        )


class Answer(Generic[ResultT]):
    """Sender of one item's results; nothing is sent after the last result."""

    def __init__(self, conversation: _Conversation[ResultT], refuse: Callable[[Exception], ResultT]) -> None:
        self._conversation = conversation
        self._refuse = refuse
        self._ended = False

    def push(self, result: ResultT) -> None:
        """Send a result that is not the last. ResultTooLargeError."""
        if not self._ended:
            self._conversation.put(result)

    def finish(self, result: ResultT) -> None:
        """Send the last result. An item whose result does not fit into a message fails."""
        try:
            self.push(result)
        except ResultTooLargeError as error:
            self.fail(error)
        else:
            self._end()

    def fail(self, error: Exception) -> None:
        """Send a refusal as the last result."""
        self.push(self._refuse(error))
        self._end()

    def leave(self) -> None:
        """End without a result: the item has none, or has it elsewhere."""
        self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._conversation.answered()


Begin = Callable[[ItemT, Answer[ResultT]], Coroutine[Any, Any, None] | None]
"""Begins to answer an item. The item fails if this raises, or if the returned coroutine does."""


class _Conversation(Generic[ResultT]):
    """Results to send, and the number of unanswered items."""

    def __init__(self) -> None:
        self.outbox: Outbox[ResultT] = Outbox(ANSWER_BATCH_BYTES)
        self._open_count = 0
        self._all_answered = asyncio.Event()

    def open_answer(self, refuse: Callable[[Exception], ResultT]) -> Answer[ResultT]:
        self._open_count += 1
        return Answer(self, refuse)

    def put(self, result: ResultT) -> None:
        byte_count = result.ByteSize()
        if not fits(byte_count, MAX_ANSWER_BYTES):
            raise ResultTooLargeError.for_size(byte_count)
        self.outbox.put(result, byte_count)

    def answered(self) -> None:
        self._open_count -= 1
        if not self._open_count:
            self._all_answered.set()

    async def wait_until_answered(self) -> None:
        """Wait until every item is answered."""
        while self._open_count:
            self._all_answered.clear()
            await self._all_answered.wait()


def peer_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the name of the peer that has opened a stream: a hash of its key.

    The key itself is neither stored nor logged. All peers without a key count as one.
    """
    keys = (value for name, value in context.invocation_metadata() or () if name == PEER_KEY)
    return hashlib.blake2b(str(next(keys, "")).encode(), digest_size=16).hexdigest()


async def answer_items(
    requests: AsyncIterator[RequestT],
    items_of: Callable[[RequestT], Iterable[ItemT]],
    begin: Begin[ItemT, ResultT],
    refuse: Callable[[ItemT, Exception], ResultT],
    pack: Callable[[list[ResultT]], ResponseT],
    draining: asyncio.Event,
    on_last_item: Callable[[], None] = lambda: None,
) -> AsyncIterator[ResponseT]:
    """Begin items in their order, as soon as they are read; yield results as they come, in batches.

    The stream ends when every item is answered and the caller has half-closed or the server is
    ``draining``. Then no more items are read, and ``on_last_item`` is called. A waiting item needs
    no task: its results are pushed from this event loop.
    """
    conversation: _Conversation[ResultT] = _Conversation()
    # A separate task: a task group must not stay open while a generator is suspended.
    answering = asyncio.create_task(
        _answer_all(requests, items_of, begin, refuse, conversation, draining, on_last_item)
    )
    answering.add_done_callback(lambda _: conversation.outbox.close())
    try:
        while batch := await conversation.outbox.batch():
            yield pack(batch)
        await answering
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def _answer_all(
    requests: AsyncIterator[RequestT],
    items_of: Callable[[RequestT], Iterable[ItemT]],
    begin: Begin[ItemT, ResultT],
    refuse: Callable[[ItemT, Exception], ResultT],
    conversation: _Conversation[ResultT],
    draining: asyncio.Event,
    on_last_item: Callable[[], None],
) -> None:
    async def follow(rest: Coroutine[Any, Any, None], answer: Answer[ResultT]) -> None:
        try:
            await rest
        except Exception as error:
            answer.fail(error)

    async def read(group: asyncio.TaskGroup) -> None:
        async for request in requests:
            for item in items_of(request):
                answer = conversation.open_answer(partial(refuse, item))
                try:
                    rest = begin(item, answer)
                except Exception as error:
                    answer.fail(error)
                    continue
                if rest is not None:
                    group.create_task(follow(rest, answer))
            await let_answers_leave()

    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read(group))
            drained = group.create_task(draining.wait())
            await asyncio.wait([reading, drained], return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            drained.cancel()
            on_last_item()
            await conversation.wait_until_answered()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
