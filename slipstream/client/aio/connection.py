"""An asyncio connection: a channel, its calls with another attempt where one was lost, and the
replies that still run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from slipstream.client.attempts import Attempts, Contact
from slipstream.client.ending import EndingCall
from slipstream.client.watching import METHODS, Watching
from slipstream.rpc.channel import open_channel
from slipstream.rpc.status import PeerError, error_of_call
from slipstream.v1 import orchestrator_pb2_grpc

if TYPE_CHECKING:
    from slipstream.client.aio.watcher import AsyncWatcher

Response = TypeVar("Response")


class TurnCall(EndingCall, Protocol):
    """A running stream of a turn's events."""

    def __aiter__(self) -> AsyncIterator[Any]: ...

    async def read(self) -> Any:
        """The next event; grpc.aio.EOF at the end."""

    def cancel(self) -> object:
        """End the stream."""


@dataclass(frozen=True, slots=True)
class _Opened:
    loop: asyncio.AbstractEventLoop
    channel: grpc.aio.Channel
    stub: orchestrator_pb2_grpc.OrchestratorServiceAsyncStub


class AsyncConnection:
    """Belongs to the event loop on which it is first used: grpc's channel takes the loop that runs
    when it is opened."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: Sequence[tuple[str, str]],
        timeout: float | None,
        contact: Contact,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._opened: _Opened | None = None
        self._contact = contact
        self._metadata = tuple(metadata)
        self._timeout = timeout
        self.running: set[AsyncWatcher] = set()
        """Replies that have not been read to their end."""

    @property
    def stub(self) -> orchestrator_pb2_grpc.OrchestratorServiceAsyncStub:
        """The bare service. RuntimeError on no event loop, or on another than where the connection
        was first used."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("an AsyncClient is used where no event loop runs: use it inside a coroutine") from None
        if self._opened is None:
            channel = open_channel(self._address, self._credentials)
            self._opened = _Opened(loop, channel, orchestrator_pb2_grpc.OrchestratorServiceStub(channel))
        if self._opened.loop is not loop:
            raise RuntimeError(
                "an AsyncClient belongs to the event loop where it was first used: make one for each loop"
            )
        return self._opened.stub

    def attempts(self, timeout: float | None) -> Attempts:
        """At one call; ``timeout`` None is the connection's own."""
        return Attempts(self._contact, self._timeout if timeout is None else timeout)

    async def call(self, method: Callable[..., Awaitable[Response]], request: object, attempts: Attempts) -> Response:
        """One answer. PeerError if there is none."""
        while True:
            try:
                response = await method(request, timeout=attempts.remaining(), metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                await asyncio.sleep(attempts.failed(error_of_call(error)))
            else:
                attempts.answered()
                return response

    async def collect(
        self, method: Callable[..., AsyncIterable[Response]], request: object, attempts: Attempts
    ) -> list[Response]:
        """All answers of a stream that is asked for anew where it is lost. PeerError if there are
        none."""
        while True:
            try:
                call = method(request, timeout=attempts.remaining(), metadata=self._metadata)
                responses = [response async for response in call]
            except grpc.aio.AioRpcError as error:
                await asyncio.sleep(attempts.failed(error_of_call(error)))
            else:
                attempts.answered()
                return responses

    def watch(self, watching: Watching) -> TurnCall:
        """Begin a stream of what it asks for."""
        request = watching.request()
        return self._stream(request, watching.attempts.remaining())

    async def cancel_turns(self, watching: Watching, patience: float) -> None:
        """End its turns at the server, as far as that can be done in so many seconds. Never
        raises."""
        deadline = time.monotonic() + patience
        with contextlib.suppress(grpc.aio.AioRpcError, PeerError):
            if not watching.known:  # the answer to the same request says which turns they are
                call = self._stream(watching.request(), patience)
                async for response in call:
                    watching.take(response)
                    if watching.known:
                        call.cancel()
                        break
            for request in watching.cancellations():
                left = max(0.0, deadline - time.monotonic())
                await self.stub.CancelTurn(request, timeout=left, metadata=self._metadata, wait_for_ready=True)

    async def close(self) -> None:
        """End the replies that run, then the channel."""
        await asyncio.gather(*(watcher.end() for watcher in tuple(self.running)))
        if self._opened is not None:
            await self._opened.channel.close()

    def _stream(self, request: Any, timeout: float | None) -> TurnCall:
        method = getattr(self.stub, METHODS[type(request)])
        call: TurnCall = method(request, timeout=timeout, metadata=self._metadata)
        return call
