"""A proxy between the orchestrator and a service, which changes the traffic as the current
disturbances ask.

Other messages pass unchanged. It understands only the streams of items and of runs; every other
call (the model, health, the tokenizer) passes as bytes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc

from slipstream.agreed import PEER_KEY
from slipstream.rpc.channel import SERVER_OPTIONS
from slipstream.rpc.connector import PLAINTEXT, Connector
from slipstream.transport.certificates import TlsFiles, reloaded_channel_credentials, server_credentials
from slipstream.wire.v1 import draft_pb2, verifier_pb2

log = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
Ask = Callable[[list[Any]], Awaitable[None]]
RunItem = verifier_pb2.RunItem
RunResult = verifier_pb2.RunResult

RUNS = "/slipstream.wire.v1.VerifierService/Run"
HINTS = "/slipstream.wire.v1.DraftService/Draft"
_CONTINUED = (RUNS, HINTS)
"""Streams whose service goes on without being asked."""

ITEM_STREAMS: dict[str, tuple[Any, Any]] = {
    "/slipstream.wire.v1.VerifierService/Verify": (verifier_pb2.VerifyRequest, verifier_pb2.VerifyResponse),
    RUNS: (verifier_pb2.RunRequest, verifier_pb2.RunResponse),
    HINTS: (draft_pb2.DraftRequest, draft_pb2.DraftResponse),
    "/slipstream.wire.v1.DraftService/Propose": (draft_pb2.ProposeRequest, draft_pb2.ProposeResponse),
}
_ENDINGS = (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError)
"""Errors that reading and writing raise when a stream has ended."""

_SERVER_STREAMS = ("/slipstream.wire.v1.ModelService/GetTokenizer",)


class Fault:
    """The effects of a disturbance on one proxy's traffic. This one has none. The proxies' event
    loop calls it."""

    def refuses(self) -> bool:
        """True while calls are answered with UNAVAILABLE, including running streams."""
        return False

    def breaks(self, *, has_runs: bool) -> bool:
        """Return True if the stream ends at this message instead of carrying it. A stream of runs
        has far fewer messages than one of rounds."""
        return False

    def items(self, items: list[Any]) -> list[Any]:
        """Return the items to send instead of these."""
        return items

    def results(self, results: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the results to pass on instead of these, and items to send again."""
        return results, []

    def closes(self, handle: str) -> None:
        """Record that a handle is closed: its items are no longer expected."""

    def run_delay(self) -> float:
        """Return the seconds for which a message about runs, and all messages behind it, wait."""
        return 0

    def run_items(self, items: list[RunItem]) -> list[RunItem]:
        """Return the items about runs to send instead of these."""
        return items

    def run_results(self, results: list[RunResult]) -> tuple[list[RunResult], list[RunItem]]:
        """Return the parts of runs to pass on instead of these, and items to send as well."""
        return results, []


class Proxy(grpc.GenericRpcHandler):
    """One address to listen on and one service behind it. Any thread may replace ``faults`` at any
    time."""

    def __init__(self, address: str, upstream: str, files: TlsFiles | None = None) -> None:
        """With ``files``, both sides use TLS."""
        self.address = address
        self.faults: Sequence[Fault] = ()
        self._files = files
        connector = PLAINTEXT if files is None else Connector(reloaded_channel_credentials(files))
        self._channel = connector.open_peer(upstream)

    async def start(self) -> None:
        """Start to listen."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        if self._files is None:
            self._server.add_insecure_port(self.address)
        else:
            self._server.add_secure_port(self.address, server_credentials(self._files))
        await self._server.start()

    async def start_again(self) -> None:
        """Cut every connection, and listen again."""
        await self._server.stop(None)
        await self.start()

    async def stop(self) -> None:
        """Cut every call."""
        await self._server.stop(None)
        await self._channel.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of a method, for grpc."""
        path: str = handler_call_details.method

        async def call(request: bytes, context: Context) -> bytes:
            return await self._call(path, request, context)

        async def stream(request: bytes, context: Context) -> AsyncIterator[bytes]:
            call = self._channel.unary_stream(path, _as_it_is, _as_it_is)(request)
            async for response in call:
                yield response

        async def converse(requests: AsyncIterator[bytes], context: Context) -> None:
            await self._converse(path, requests, context)

        if path in ITEM_STREAMS:
            return grpc.stream_stream_rpc_method_handler(converse)
        if path in _SERVER_STREAMS:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(call)

    async def _call(self, path: str, request: bytes, context: Context) -> bytes:
        if any(fault.refuses() for fault in self.faults):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy plays dead")
        try:
            call = self._channel.unary_unary(path, _as_it_is, _as_it_is)
            return await call(request, timeout=context.time_remaining())
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
            raise AssertionError("abort always raises") from error

    async def _converse(self, path: str, requests: AsyncIterator[bytes], context: Context) -> None:
        """Carry an item stream until either side or a fault ends it."""
        request_type, response_type = ITEM_STREAMS[path]
        call = self._channel.stream_stream(
            path, request_serializer=request_type.SerializeToString, response_deserializer=response_type.FromString
        )(metadata=[pair for pair in context.invocation_metadata() or () if pair[0] == PEER_KEY])
        writing = asyncio.Lock()

        async def ask(items: list[Any]) -> None:
            async with writing:
                await call.write(request_type(items=items))

        ends = (
            asyncio.create_task(self._carry_items(path, requests, ask)),
            asyncio.create_task(self._carry_results(path, call, ask, context)),
        )
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            call.cancel()
            for error in await asyncio.gather(*ends, return_exceptions=True):
                if isinstance(error, Exception) and not isinstance(error, _ENDINGS):
                    log.error("a proxy failed", exc_info=error)
        # Either side may have ended it: the orchestrator sees a stream that is gone. It may be
        # writing, so the status may not arrive.
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy ended the stream")

    async def _carry_items(self, path: str, requests: AsyncIterator[bytes], ask: Ask) -> None:
        goes_on, request_type = path in _CONTINUED, ITEM_STREAMS[path][0]
        async for data in requests:
            if self._cuts(goes_on):
                return
            await self._delay(goes_on)
            items = list(request_type.FromString(data).items)
            closing = [item for item in items if item.HasField("close")]  # no round: they go on as they came
            items = [item for item in items if not item.HasField("close")]
            for fault in self.faults:
                if path == RUNS:
                    items = fault.run_items(items)
                elif not goes_on:
                    items = fault.items(items)
                for item in closing:
                    fault.closes(item.handle)
            await ask([*items, *closing])

    async def _carry_results(self, path: str, call: Any, ask: Ask, context: Context) -> None:
        goes_on, response_type = path in _CONTINUED, ITEM_STREAMS[path][1]
        async for response in call:
            if self._cuts(goes_on):
                return
            await self._delay(goes_on)
            results, also = list(response.results), []  # type: list[Any], list[Any]
            for fault in self.faults:
                if path == RUNS:
                    results, also = fault.run_results(results)
                elif not goes_on:
                    results, also = fault.results(results)
                if also:
                    await ask(also)
            if results:
                await context.write(response_type(results=results).SerializeToString())

    def _cuts(self, goes_on: bool) -> bool:
        return any(fault.refuses() or fault.breaks(has_runs=goes_on) for fault in self.faults)

    async def _delay(self, goes_on: bool) -> None:
        if goes_on and (seconds := sum(fault.run_delay() for fault in self.faults)):
            await asyncio.sleep(seconds)


def _as_it_is(message: bytes) -> bytes:
    return message


class ProxyThread:
    """Runs proxies on an event loop in a thread. Use it as a context."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._proxies: list[Proxy] = []

    def open(self, address: str, upstream: str, files: TlsFiles | None = None) -> Proxy:
        """Return a proxy that listens. With ``files``, both sides use TLS."""

        async def start() -> Proxy:
            proxy = Proxy(address, upstream, files)
            await proxy.start()
            return proxy

        proxy = self._run(start())
        self._proxies.append(proxy)
        return proxy

    def start_again(self) -> None:
        """Cut every connection of every proxy."""
        for proxy in self._proxies:
            self._run(proxy.start_again())

    def __enter__(self) -> ProxyThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for proxy in self._proxies:
            self._run(proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
