"""Items and results of a stream, and the receivers of results."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.outbox import Measured
from slipstream.rpc.status import PeerError


class Keyed(Measured, Protocol):
    """An item or a result, which a handle and a round identify."""

    @property
    def handle(self) -> str:
        """Return the handle of the sequence."""

    @property
    def round(self) -> int:
        """Return the round of the handle."""


ItemT = TypeVar("ItemT", bound=Keyed)
ResultT = TypeVar("ResultT", bound=Keyed)
ResultT_contra = TypeVar("ResultT_contra", contravariant=True)


class ItemTooLargeError(PeerError):
    """The item does not fit into a message (metadata: byte_count)."""

    def __init__(self, byte_count: int) -> None:
        super().__init__(
            Code.INVALID_ARGUMENT,
            Reason.ITEM_TOO_LARGE,
            f"an item of {byte_count:,} bytes does not fit into a message: shorten the prompt or the lists of the rule",
            {"byte_count": str(byte_count)},
        )


class BadResultError(PeerError):
    """The peer's result cannot be understood."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Code.INTERNAL, Reason.BAD_RESULT, f"the peer's result cannot be understood: {error!r}")


class Sink(Protocol[ResultT_contra]):
    """Receiver of one item's results."""

    def receive(self, result: ResultT_contra) -> bool:
        """Receive one result; return True if it is the last. An exception fails only this item."""

    def fail(self, error: PeerError) -> None:
        """Receive the error that replaces further results.

        The item was not sent, its result was not understood, or the stream has ended.
        """


class OneResult(Generic[ResultT]):
    """A sink for one result, which can be awaited."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()

    def receive(self, result: ResultT) -> bool:
        """Keep the result."""
        if not self.answer.done():
            self.answer.set_result(result)
        return True

    def fail(self, error: PeerError) -> None:
        """Keep the error."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # read it once: the asking task may have given up, which is no fault
