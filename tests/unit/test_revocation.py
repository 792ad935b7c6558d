"""Streams are looked at once a period, however many have come and gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from orchestrator.access.revocation import RevocableStreams


class CountingAccess:
    """Believes every caller, and counts how often it is asked."""

    name = "alice"

    def __init__(self) -> None:
        self.asked_count = 0

    def principal_of(self, context: Any) -> CountingAccess:
        self.asked_count += 1
        return self


async def test_short_streams_leave_no_looks_behind() -> None:
    access = CountingAccess()
    streams = RevocableStreams(access, 0.05)
    go_on = asyncio.Event()

    async def tell(request: str, context: Any) -> AsyncIterator[str]:
        yield "told"
        if request == "long":
            await go_on.wait()

    stream = streams.make_revocable(grpc.unary_stream_rpc_method_handler(tell)).unary_stream
    for _ in range(200):
        assert [each async for each in stream("short", None)] == ["told"]
    long = stream("long", None)
    assert await anext(long) == "told"
    following = asyncio.create_task(anext(long, None))
    access.asked_count = 0
    began = asyncio.get_running_loop().time()
    for _ in range(10_000):
        if access.asked_count >= 3:
            break
        await asyncio.sleep(0.01)
    looked = (asyncio.get_running_loop().time() - began) / 0.05
    assert access.asked_count <= looked + 2, "one look a period"
    go_on.set()
    assert await following is None
