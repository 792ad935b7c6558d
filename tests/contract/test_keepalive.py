"""How often a client may ping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from slipstream.rpc.channel import SERVER_OPTIONS
from slipstream.wire.v1 import verifier_pb2, verifier_pb2_grpc
from tests.lock_step_verifier import LockStepVerifier

PINGS_EACH_SECOND = (
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


class Silent(LockStepVerifier):
    async def Verify(
        self, request_iterator: AsyncIterator[verifier_pb2.VerifyRequest], context: Any
    ) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        async for _ in request_iterator:
            yield verifier_pb2.VerifyResponse()


async def test_pings_each_second_do_not_end_an_idle_stream() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=PINGS_EACH_SECOND) as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify()
        await call.write(verifier_pb2.VerifyRequest())
        assert await call.read() == verifier_pb2.VerifyResponse()
        await asyncio.sleep(6)
        await call.write(verifier_pb2.VerifyRequest())
        assert await call.read() == verifier_pb2.VerifyResponse()
        await call.done_writing()
    await server.stop(0)
