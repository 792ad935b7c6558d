"""Runs over a real socket: what a stream may ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipstream.agreed import PEER_KEY
from slipstream.engine.host import HostLimits
from slipstream.rpc.sampling_wire import rule_message
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import verifier_pb2, verifier_pb2_grpc
from tests.contract.test_handles import OURS, RATIO, Services


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services(HostLimits(sweep_seconds=0.02))
    await services.start()
    yield services
    await services.stop()


class Stream:
    """A stream of runs of one peer."""

    def __init__(self, services: Services) -> None:
        stub = verifier_pb2_grpc.VerifierServiceStub(services.channel)
        self.call = stub.Run(metadata=((PEER_KEY, OURS),))

    async def say(self, number: int, handle: str = "a", **action: Any) -> None:
        item = verifier_pb2.RunItem(handle=handle, round=number, **action)
        await self.call.write(verifier_pb2.RunRequest(items=[item]))

    async def start(self, number: int, until: int, granted: int, rule: SamplingRule = SamplingRule()) -> None:  # noqa: B008
        start = verifier_pb2.StartRun(
            tail=[5, 6], until_length=until, granted_length=granted, rule=rule_message(rule, 259), open={}
        )
        await self.say(number, start=start)

    async def results(self) -> AsyncIterator[verifier_pb2.RunResult]:
        while True:
            response = await asyncio.wait_for(self.call.read(), 10)
            assert isinstance(response, verifier_pb2.RunResponse)
            for result in response.results:
                yield result

    async def told(self, count: int) -> verifier_pb2.RunResult:
        """The result with the token of this number, or the last one."""
        async for result in self.results():
            if result.end or result.HasField("error") or result.position - 2 + len(result.tokens) >= count:
                return result
        raise AssertionError


@pytest.mark.parametrize(("until", "granted", "rule"), [(20, 20, RATIO), (2, 20, None), (20, 2, None), (-1, -1, None)])
async def test_a_start_that_makes_no_sense_is_refused(
    services: Services, until: int, granted: int, rule: SamplingRule | None
) -> None:
    stream = Stream(services)
    await stream.start(1, until, granted, rule or SamplingRule())
    assert b"INVALID_FIELDS" in (await stream.told(1)).error.SerializeToString()
