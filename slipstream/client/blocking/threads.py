"""Locks, calls and channels of the blocking client. The asyncio client's counterpart is
`slipstream.client.aio.event_loop`: same names, with ``Async``.

These two modules, and both named ``reading``, are written by hand. The other modules of this client
are generated from the asyncio client's (``tools/make_blocking_client.py``).
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import grpc

from slipstream.client.ending import FAREWELL_SECONDS, EndingCall
from slipstream.rpc.channel import CLIENT_OPTIONS
from slipstream.rpc.status import PeerError, error_of_call
from slipstream.v1 import orchestrator_pb2_grpc

if TYPE_CHECKING:
    from slipstream.client.blocking.connection import Connection

Response = TypeVar("Response")
Method: TypeAlias = Callable[..., Response]
"""A method of the service that gives one answer."""
RpcError = grpc.RpcError
sleep = time.sleep

_open: weakref.WeakSet[Connection] = weakref.WeakSet()


class TurnCall(EndingCall, Protocol):
    """A running stream of a turn's events."""

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...

    def cancel(self) -> object:
        """End the stream."""


def read_event(call: TurnCall) -> Any:
    """Return a stream's next event, None at its end. RpcError if the stream failed, or another
    thread has ended it."""
    return next(call, None)


def peer_error_of(error: RpcError) -> PeerError:
    """Return the error that a failed call means."""
    return error_of_call(error)  # type: ignore[arg-type]


def call_all(functions: Iterable[Callable[[], None]]) -> None:
    """Call several functions, one after another."""
    for function in functions:
        function()


class Lock:
    """A lock for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free. False if it is not."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Let another thread have it."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class Event(threading.Event):
    """An event that threads wait for."""

    def wait_for(self, seconds: float) -> bool:
        """Wait until the event is set, at most so long. False if it is not."""
        return self.wait(seconds)


class Channel:
    """A channel to the orchestrator, safe to use from threads."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=CLIENT_OPTIONS)
        self.stub = orchestrator_pb2_grpc.OrchestratorServiceStub(self._channel)

    def close_channel(self) -> None:
        """Close the channel."""
        self._channel.close()


def stop_at_exit(connection: Connection) -> None:
    """Stop a connection's replies when the program ends: later no thread could do it."""
    _open.add(connection)


@atexit.register
def _stop_all_replies() -> None:
    deadline = time.monotonic() + FAREWELL_SECONDS
    for connection in tuple(_open):
        for watcher in tuple(connection.running):
            watcher.stop_watching(max(0.0, deadline - time.monotonic()))
