"""A request that was refused is gone with its call, whether the collector comes by or not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncGenerator, Iterator
from typing import Any, ClassVar

import grpc
import pytest

from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.rpc.server import Server
from slipstream.rpc.status import abort

WAYS = ["unary refused", "unary failed", "stream refused", "stream failed", "stream left"]


class Request:
    """What a client sent, seen as long as it lives."""

    alive: ClassVar[weakref.WeakSet[Request]] = weakref.WeakSet()

    def __init__(self, data: bytes) -> None:
        self.data = data
        Request.alive.add(self)


async def _end(how: str, context: Any) -> None:
    try:
        raise InvalidFieldsError([FieldViolation("field", "must be another")])
    except InvalidFieldsError as error:
        if how == "refused":
            await abort(context, error)
        raise


async def _unary(request: Request, context: Any) -> bytes:
    await _end(request.data.decode(), context)
    return b"unreachable"


async def _stream(request: Request, context: Any) -> AsyncGenerator[bytes]:
    how = request.data.decode()
    for _ in range(1000 if how == "left" else 2):
        yield b"one"
    await _end(how, context)


@pytest.fixture
def without_a_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("without_a_collector")
async def test_nothing_of_a_request_outlives_a_call_that_ends_in_an_error(way: str) -> None:
    kind, how = way.split()
    server = Server("127.0.0.1:0", ())
    handlers: dict[str, Any] = {
        "unary": grpc.unary_unary_rpc_method_handler(_unary, request_deserializer=Request),
        "stream": grpc.unary_stream_rpc_method_handler(_stream, request_deserializer=Request),
    }
    server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Ending", handlers),))
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(20):
            if kind == "unary":
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary("/test.Ending/unary")(how.encode())
            else:
                call: Any = channel.unary_stream("/test.Ending/stream")(how.encode())
                responses = aiter(call)
                assert await anext(responses) == b"one"
                if how == "left":
                    call.cancel()
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in responses:
                        pass
            refused = grpc.StatusCode.INVALID_ARGUMENT if how == "refused" else grpc.StatusCode.UNKNOWN
            assert caught.value.code() is refused
    await server.grpc.stop(1)
    alive = len(Request.alive)
    del server
    gc.collect()  # while its loop is there
    assert alive <= 1, "the last one may be on its way out"
