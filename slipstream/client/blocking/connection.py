# Generated from aio/connection.py by tools/make_blocking_client.py. Edit that module.
"""A connection: a channel, its calls, which are repeated where they are lost, and the replies that
still run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.client.attempts import Attempts, Contact
from slipstream.client.blocking.threads import (
    Channel,
    Method,
    RpcError,
    TurnCall,
    call_all,
    peer_error_of,
    sleep,
    stop_at_exit,
)
from slipstream.client.watching import METHODS, Watching
from slipstream.rpc.status import PeerError
from slipstream.v1 import orchestrator_pb2_grpc

if TYPE_CHECKING:
    from slipstream.client.blocking.watcher import Watcher

Response = TypeVar("Response")


class Connection:
    """A connection to one orchestrator, which all objects of a client share."""

    def __init__(
        self,
        channel: Channel,
        metadata: Sequence[tuple[str, str]],
        timeout: float | None,
        contact: Contact,
        *,
        owns_channel: bool = True,
    ) -> None:
        self._channel = channel
        self._owns_channel = owns_channel
        self._contact = contact
        self._metadata = tuple(metadata)
        self._timeout = timeout
        self.running: set[Watcher] = set()
        """Watchers of replies that have not been read to their end."""
        stop_at_exit(self)

    @property
    def stub(self) -> orchestrator_pb2_grpc.OrchestratorServiceStub:
        """The service's stub."""
        return self._channel.stub

    def beside(self, metadata: Sequence[tuple[str, str]]) -> Connection:
        """Return a connection over the same channel whose calls carry other metadata."""
        return Connection(self._channel, metadata, self._timeout, self._contact, owns_channel=False)

    def attempts(self, timeout: float | None) -> Attempts:
        """Return the attempts at one call. ``timeout`` None is the connection's own."""
        return Attempts(self._contact, self._timeout if timeout is None else timeout)

    def call(self, method: Method[Response], request: object, attempts: Attempts) -> Response:
        """Return a method's answer. PeerError if there is none."""
        while True:
            try:
                response = method(request, timeout=attempts.remaining(), metadata=self._metadata)
            except RpcError as error:
                sleep(attempts.delay_after(peer_error_of(error)))
            else:
                attempts.note_answer()
                return response

    def collect(self, method: Callable[..., Iterable[Response]], request: object, attempts: Attempts) -> list[Response]:
        """Return all answers of a stream. A stream that is lost is begun again. PeerError if there
        are none."""
        while True:
            try:
                call = method(request, timeout=attempts.remaining(), metadata=self._metadata)
                responses = [response for response in call]
            except RpcError as error:
                sleep(attempts.delay_after(peer_error_of(error)))
            else:
                attempts.note_answer()
                return responses

    def stream(
        self, method: Callable[..., Iterable[Response]], request: object, attempts: Attempts
    ) -> Generator[Response, None]:
        """Iterate over the answers of a stream. PeerError if it is lost."""
        call: Any = method(request, timeout=attempts.remaining(), metadata=self._metadata)
        try:
            for response in call:
                attempts.note_answer()
                yield response
        except RpcError as error:
            raise peer_error_of(error) from error
        finally:
            call.cancel()

    def begin_stream(self, watching: Watching) -> TurnCall:
        """Begin a stream of what a `Watching` asks for."""
        request = watching.request()
        return self._stream(request, watching.attempts.remaining())

    def cancel_turns(self, watching: Watching, patience: float) -> None:
        """Cancel turns at the server, as far as ``patience`` seconds suffice. Never raises."""
        deadline = time.monotonic() + patience
        with contextlib.suppress(RpcError, PeerError):
            if not watching.known:  # the answer to the same request says which turns they are
                call = self._stream(watching.request(), patience)
                for response in call:
                    watching.take_response(response)
                    if watching.known:
                        call.cancel()
                        break
            for request in watching.cancellations():
                left = max(0.0, deadline - time.monotonic())
                self.stub.CancelTurn(request, timeout=left, metadata=self._metadata, wait_for_ready=True)

    def close_connection(self) -> None:
        """Stop the replies that run, then close the channel if it is this connection's own."""
        call_all([watcher.stop_watching for watcher in self.running])
        if self._owns_channel:
            self._channel.close_channel()

    def _stream(self, request: Any, timeout: float | None) -> TurnCall:
        method = getattr(self.stub, METHODS[type(request)])
        call: TurnCall = method(request, timeout=timeout, metadata=self._metadata)
        return call
