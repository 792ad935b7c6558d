"""Bytes that are no message are refused like any other bad request, whichever kind of call they
come in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from slipstream.errors import Code
from slipstream.rpc.server import Server
from slipstream.rpc.status import error_of_call
from slipstream.v1 import orchestrator_pb2 as pb

CORRUPT, BAD_UTF8 = b"\xff\xff\xff", b"\x0a\x01\xff"
FINE = pb.GetSessionRequest(session_id="x").SerializeToString()


async def _unary(request: pb.GetSessionRequest, context: Any) -> bytes:
    return request.session_id.encode()


async def _stream(request: pb.GetSessionRequest, context: Any) -> AsyncGenerator[bytes]:
    yield request.session_id.encode()


async def _converse(requests: AsyncIterator[pb.GetSessionRequest], context: Any) -> AsyncGenerator[bytes]:
    async for request in requests:
        yield request.session_id.encode()


async def _converse_and_fail_otherwise(
    requests: AsyncIterator[pb.GetSessionRequest], context: Any
) -> AsyncGenerator[bytes]:
    try:
        async for request in requests:
            yield request.session_id.encode()
    except Exception:
        raise RuntimeError("what a call that requests were passed on to made of it") from None


async def _messages(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def _ask(channel: grpc.aio.Channel, way: str, *messages: bytes) -> list[bytes]:
    method = f"/test.Parsing/{way}"
    call: Any
    if way == "unary":
        call = channel.unary_unary(method)
        return [await call(messages[-1])]
    if way == "stream":
        call = channel.unary_stream(method)
        return [response async for response in call(messages[-1])]
    call = channel.stream_stream(method)
    return [response async for response in call(_messages(*messages))]


@pytest.mark.parametrize("data", [CORRUPT, BAD_UTF8], ids=["corrupt", "bad UTF-8"])
@pytest.mark.parametrize("way", ["unary", "stream", "converse", "fail"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(way: str, data: bytes) -> None:
    server = Server("127.0.0.1:0", ())
    parse = pb.GetSessionRequest.FromString
    handlers: dict[str, Any] = {
        "unary": grpc.unary_unary_rpc_method_handler(_unary, request_deserializer=parse),
        "stream": grpc.unary_stream_rpc_method_handler(_stream, request_deserializer=parse),
        "converse": grpc.stream_stream_rpc_method_handler(_converse, request_deserializer=parse),
        "fail": grpc.stream_stream_rpc_method_handler(_converse_and_fail_otherwise, request_deserializer=parse),
    }
    server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Parsing", handlers),))
    port = await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.grpc.stop, 0)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        assert await _ask(channel, way, FINE) == [b"x"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _ask(channel, way, FINE, data)
        error = error_of_call(caught.value)
        assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELDS")
        assert [violation.field for violation in error.violations] == ["request"]
