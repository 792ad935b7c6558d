"""Draft and verifier services that answer rounds or runs with nonsense: real servers between an
orchestrator and a correct service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from proving.hostile import nonsense_infos, nonsense_results
from slipstream.agreed import PEER_KEY
from slipstream.rpc.channel import SERVER_OPTIONS, open_channel
from slipstream.wire.v1 import draft_pb2, model_pb2, verifier_pb2

Context = grpc.aio.ServicerContext[Any, Any]

_MODEL = "/slipstream.wire.v1.ModelService/"
_ITEMS: Mapping[str, tuple[str, Any, Any]] = {
    "draft": ("/slipstream.wire.v1.DraftService/Propose", draft_pb2.ProposeRequest, draft_pb2.ProposeResponse),
    "verifier": ("/slipstream.wire.v1.VerifierService/Verify", verifier_pb2.VerifyRequest, verifier_pb2.VerifyResponse),
    "hints": ("/slipstream.wire.v1.DraftService/Draft", draft_pb2.DraftRequest, draft_pb2.DraftResponse),
    "runs": ("/slipstream.wire.v1.VerifierService/Run", verifier_pb2.RunRequest, verifier_pb2.RunResponse),
}
_PATHS = frozenset(path for path, *_ in _ITEMS.values())
_MIB = 2**20
_OPTIONS = [option for option in SERVER_OPTIONS if "compression" not in option[0]]
"""Options of a hostile server, which may compress any message."""

RESULTS = {
    "draft": nonsense_results.DRAFT_RESULTS,
    "verifier": nonsense_results.VERIFIER_RESULTS,
    "hints": nonsense_results.HINT_RESULTS,
    "runs": nonsense_results.RUN_RESULTS,
}


def _padded(response: Any, byte_count: int) -> bytes:
    """Return the correct message with an unknown field of ``byte_count`` bytes."""
    length, varint = byte_count, b""
    while length > 0x7F:
        varint += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes(response.SerializeToString() + b"\xfa\x3f" + varint + bytes([length]) + b"\0" * byte_count)


async def _ends(response: Any, context: Context) -> bytes:
    await context.abort(grpc.StatusCode.OK if response is None else grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")
    raise AssertionError("abort always raises")


async def _ends_in_garbage(response: Any, context: Context) -> bytes:
    context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff\xff"),))
    await context.abort(grpc.StatusCode.INTERNAL, "details that are none")
    raise AssertionError("abort always raises")


async def _ends_two_ways(response: Any, context: Context) -> bytes:
    status = status_pb2.Status(code=3, message="another")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="INVALID_FIELDS", domain="slipstream"))
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(grpc.StatusCode.INTERNAL, "one")
    raise AssertionError("abort always raises")


async def _compressed(response: Any, context: Context) -> bytes:
    context.set_compression(grpc.Compression.Gzip)
    return _padded(response, 60 * _MIB)


def _always(make: Callable[[Any], bytes]) -> Callable[[Any, Context], Any]:
    async def mutate(response: Any, context: Context) -> bytes:
        return make(response)

    return mutate


STREAMS: Mapping[str, Callable[[Any, Context], Any]] = {
    "bytes that are no message": _always(lambda response: b"\xff" * 100),
    "message of 5 MiB": _always(lambda response: _padded(response, 5 * _MIB)),
    "message of 60 MiB": _always(lambda response: _padded(response, 60 * _MIB)),
    "60 MiB compressed": _compressed,
    "1,000,000 empty results": _always(lambda response: response.SerializeToString() + b"\x0a\x00" * 1_000_000),
    "stream ends at each item": _ends,
    "status whose details are no message": _ends_in_garbage,
    "status whose details are of another code": _ends_two_ways,
}
"""Ways to spoil a whole message of correct results, by name."""


class HostilePeer(grpc.GenericRpcHandler):
    """A draft or a verifier in front of a correct one. While it has a ``kind`` of nonsense, it
    answers items with that."""

    def __init__(self, role: str, address: str, upstream: str) -> None:
        self._path, self._request, self._response = _ITEMS[role]
        self._results = RESULTS[role]
        self.address = address
        self._upstream = upstream
        self.kind = ""
        self.asked: Counter[str] = Counter()
        """Number of items answered under each kind; "" is the correct answer."""

    @staticmethod
    def kinds(role: str) -> list[str]:
        """All kinds that it knows."""
        return [*RESULTS[role], *STREAMS]

    async def start(self) -> None:
        """Start to listen."""
        self._channel: Any = open_channel(self._upstream)
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Cut every call."""
        await self._server.stop(None)
        await self._channel.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of a method, for grpc."""
        path: str = handler_call_details.method

        async def call(request: bytes, context: Context) -> bytes:
            return bytes(await self._channel.unary_unary(path)(request, timeout=context.time_remaining()))

        async def stream(request: bytes, context: Context) -> AsyncIterator[bytes]:
            async for response in self._channel.unary_stream(path)(request):
                yield response

        if path == self._path:
            return grpc.stream_stream_rpc_method_handler(self._converse, self._request.FromString)
        if path in _PATHS:
            return grpc.stream_stream_rpc_method_handler(partial(self._carry, path))
        if path == f"{_MODEL}GetTokenizer":
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(call)

    async def _carry(self, path: str, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Carry a stream of another kind as it is."""
        call = self._channel.stream_stream(path)(requests, metadata=_peer_key(context))
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    async def _converse(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[bytes]:
        call = self._channel.stream_stream(
            self._path,
            request_serializer=self._request.SerializeToString,
            response_deserializer=self._response.FromString,
        )(metadata=_peer_key(context))
        items: dict[tuple[str, int], Any] = {}

        async def ask() -> None:
            async for request in requests:
                items.update({(item.handle, item.round): item for item in request.items if _has_results(item)})
                await call.write(request)
            await call.done_writing()

        asking = asyncio.create_task(ask())
        try:
            async for response in call:
                yield await self._mutated(response, items, context)
        finally:
            asking.cancel()
            call.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _mutated(self, response: Any, items: dict[tuple[str, int], Any], context: Context) -> bytes:
        kind = self.kind
        rounds = [each for each in response.results if not items[each.handle, each.round].HasField("close")]
        self.asked[kind] += len(rounds)
        if not rounds or not kind:
            return bytes(response.SerializeToString())
        if kind in STREAMS:
            return bytes(await STREAMS[kind](response, context))
        mutate = self._results[kind]
        results = []
        for result in response.results:
            item = items[result.handle, result.round]
            is_answer = not item.HasField("close") and not result.HasField("error")
            results += mutate(result, item) if is_answer else [result]
        return bytes(self._response(results=results).SerializeToString())


class Liar(grpc.GenericRpcHandler):
    """A service that reports one kind of nonsense about its model, and nothing else. It reports
    that it serves."""

    def __init__(self, address: str, answer: bytes) -> None:
        self.address = address
        self._answer = answer
        self.asked = 0
        """Number of requests for its model."""
        self.items = 0
        """Number of item streams opened to it. There should be none."""

    async def start(self) -> None:
        """Start to listen."""
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Cut every call."""
        await self._server.stop(None)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a method, for grpc."""
        path: str = handler_call_details.method
        if path == "/grpc.health.v1.Health/Check":
            serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
            return grpc.unary_unary_rpc_method_handler(_answering(serving.SerializeToString()))
        if path == f"{_MODEL}GetModelInfo":
            self.asked += 1
            return grpc.unary_unary_rpc_method_handler(_answering(self._answer))
        self.items += path in _PATHS
        return None


def _peer_key(context: Context) -> list[Any]:
    return [pair for pair in context.invocation_metadata() or () if pair[0] == PEER_KEY]


def _has_results(item: Any) -> bool:
    return not isinstance(item, verifier_pb2.RunItem | draft_pb2.DraftItem) or item.WhichOneof("action") in (
        "start",
        "close",
    )


def _answering(answer: bytes) -> Callable[[bytes, Context], Any]:
    async def call(request: bytes, context: Context) -> bytes:
        return answer

    return call


def lies(info: model_pb2.ModelInfo) -> dict[str, bytes]:
    """Return every kind of nonsense about a model that really is ``info``, as an answer to
    GetModelInfo."""
    answers = {
        "info that is no message": b"\xff" * 100,
        "info of 5 MiB": _padded(model_pb2.GetModelInfoResponse(model=info), 5 * _MIB),
    }
    for name, mutate in nonsense_infos.INFOS.items():
        lie = model_pb2.ModelInfo()
        lie.CopyFrom(info)
        mutate(lie)
        answers[name] = model_pb2.GetModelInfoResponse(model=lie).SerializeToString()
    return answers
