"""Locks, calls and channels of the asyncio client. The blocking client's counterpart is
`slipstream.client.blocking.threads`: same names, without ``Async``.

These two modules, and both named ``reading``, are written by hand. The other modules of the
blocking client are generated from the asyncio client's (``tools/make_blocking_client.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc

from slipstream.client.ending import EndingCall
from slipstream.rpc.channel import CLIENT_OPTIONS, open_channel
from slipstream.rpc.status import PeerError, StreamLostError, error_of_call
from slipstream.v1 import orchestrator_pb2_grpc

Response = TypeVar("Response")
Method: TypeAlias = Callable[..., Awaitable[Response]]
"""A method of the service that gives one answer."""
RpcError = grpc.aio.AioRpcError
sleep = asyncio.sleep


class TurnCall(EndingCall, Protocol):
    """A running stream of a turn's events."""

    def __aiter__(self) -> AsyncIterator[Any]: ...

    async def read(self) -> Any:
        """Return the next event; grpc.aio.EOF at the end."""

    def cancel(self) -> object:
        """End the stream."""


async def read_event(call: TurnCall) -> Any:
    """Return a stream's next event, None at its end. StreamLostError if another task has ended the
    stream, RpcError if it failed."""
    try:
        event = await call.read()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling() > 0:
            raise
        raise StreamLostError("another task has ended the stream") from None
    return None if event is grpc.aio.EOF else event


def peer_error_of(error: RpcError) -> PeerError:
    """Return the error that a failed call means."""
    return error_of_call(error)


async def call_all(functions: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call several functions at the same time."""
    await asyncio.gather(*(function() for function in functions))


class AsyncLock(asyncio.Lock):
    """A lock for tasks."""

    async def try_acquire(self) -> bool:
        """Acquire the lock if it is free. False if it is not."""
        return not self.locked() and await self.acquire()


class AsyncEvent(asyncio.Event):
    """An event that tasks wait for."""

    async def wait_for(self, seconds: float) -> bool:
        """Wait until the event is set, at most so long. False if it is not."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)
        return self.is_set()


@dataclass(frozen=True, slots=True)
class _Opened:
    loop: asyncio.AbstractEventLoop
    channel: grpc.aio.Channel
    stub: orchestrator_pb2_grpc.OrchestratorServiceAsyncStub


class AsyncChannel:
    """A channel to the orchestrator. It belongs to the event loop where it is first used: grpc's
    channel takes the loop that runs when it is opened."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self._address = address
        self._credentials = credentials
        self._opened: _Opened | None = None

    @property
    def stub(self) -> orchestrator_pb2_grpc.OrchestratorServiceAsyncStub:
        """The service's stub. RuntimeError on no event loop, or on another than where the channel
        was first used."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("an AsyncClient is used where no event loop runs: use it inside a coroutine") from None
        if self._opened is None:
            channel = open_channel(self._address, self._credentials, options=CLIENT_OPTIONS)
            self._opened = _Opened(loop, channel, orchestrator_pb2_grpc.OrchestratorServiceStub(channel))
        if self._opened.loop is not loop:
            raise RuntimeError(
                "an AsyncClient belongs to the event loop where it was first used: make one for each loop"
            )
        return self._opened.stub

    async def close_channel(self) -> None:
        """Close the channel, if it was opened."""
        if self._opened is not None:
            await self._opened.channel.close()


def stop_at_exit(connection: object) -> None:
    """Do nothing: a program that ends closes its event loops, and their tasks end with them."""
