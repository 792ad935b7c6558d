"""A blocking connection: a channel, its calls with another attempt where one was lost, and the
replies that still run."""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from slipstream.client.attempts import Attempts, Contact
from slipstream.client.ending import FAREWELL_SECONDS, EndingCall
from slipstream.client.watching import METHODS, TurnResponse, Watching
from slipstream.rpc.channel import CHANNEL_OPTIONS
from slipstream.rpc.status import PeerError, error_of_call
from slipstream.v1 import orchestrator_pb2_grpc

if TYPE_CHECKING:
    from slipstream.client.blocking.watcher import Watcher

Response = TypeVar("Response")

_open: weakref.WeakSet[Connection] = weakref.WeakSet()


class TurnCall(EndingCall, Protocol):
    """A running stream of a turn's events."""

    def __iter__(self) -> Iterator[TurnResponse]: ...

    def __next__(self) -> TurnResponse: ...

    def cancel(self) -> object:
        """End the stream."""


class Connection:
    """Safe to use from threads."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: Sequence[tuple[str, str]],
        timeout: float | None,
        contact: Contact,
    ) -> None:
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
        self.stub = orchestrator_pb2_grpc.OrchestratorServiceStub(self._channel)
        self._contact = contact
        self._metadata = tuple(metadata)
        self._timeout = timeout
        self.running: set[Watcher] = set()
        """Replies that have not been read to their end."""
        _open.add(self)

    def attempts(self, timeout: float | None) -> Attempts:
        """At one call; ``timeout`` None is the connection's own."""
        return Attempts(self._contact, self._timeout if timeout is None else timeout)

    def call(self, method: Callable[..., Response], request: object, attempts: Attempts) -> Response:
        """One answer. PeerError if there is none."""
        while True:
            try:
                response = method(request, timeout=attempts.remaining(), metadata=self._metadata)
            except grpc.RpcError as error:
                time.sleep(attempts.failed(error_of_call(error)))  # type: ignore[arg-type]
            else:
                attempts.answered()
                return response

    def collect(self, method: Callable[..., Iterator[Response]], request: object, attempts: Attempts) -> list[Response]:
        """All answers of a stream that is asked for anew where it is lost. PeerError if there are
        none."""
        return self.call(lambda *asked, **how: list(method(*asked, **how)), request, attempts)

    def watch(self, watching: Watching) -> TurnCall:
        """Begin a stream of what it asks for."""
        request = watching.request()
        return self._stream(request, watching.attempts.remaining())

    def cancel_turns(self, watching: Watching, patience: float) -> None:
        """End its turns at the server, as far as that can be done in so many seconds. Never
        raises."""
        deadline = time.monotonic() + patience
        with contextlib.suppress(grpc.RpcError, PeerError):
            if not watching.known:  # the answer to the same request says which turns they are
                for response in (call := self._stream(watching.request(), patience)):
                    watching.take(response)
                    if watching.known:
                        call.cancel()
                        break
            for request in watching.cancellations():
                left = max(0.0, deadline - time.monotonic())
                self.stub.CancelTurn(request, timeout=left, metadata=self._metadata, wait_for_ready=True)

    def close(self) -> None:
        """End the replies that run, then the channel."""
        for watcher in tuple(self.running):
            watcher.end()
        self._channel.close()

    def _stream(self, request: Any, timeout: float | None) -> TurnCall:
        method = getattr(self.stub, METHODS[type(request)])
        call: TurnCall = method(request, timeout=timeout, metadata=self._metadata)
        return call


@atexit.register
def _end_all_replies() -> None:
    """Those that a program leaves by its own end: later there are no threads that could do it."""
    deadline = time.monotonic() + FAREWELL_SECONDS
    for connection in tuple(_open):
        for watcher in tuple(connection.running):
            watcher.end(max(0.0, deadline - time.monotonic()))
