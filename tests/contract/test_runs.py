"""Runs over a real socket: what a stream may ask, and what its end changes."""

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

    async def say(self, number: int, handle: str = "a" * 32, **action: Any) -> None:
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
    error = (await stream.told(1)).error.SerializeToString()
    assert b"INVALID_FIELDS" in error
    assert (b"rule.acceptance" if rule else b"_length") in error


async def test_a_run_is_granted_and_stopped_by_its_own_number_only(services: Services) -> None:
    stream = Stream(services)
    await stream.start(3, 4000, 12)
    await stream.told(10)
    await stream.say(2, grant={"granted_length": 100})
    await stream.say(4, stop={})
    await stream.say(3, "u" * 32, grant={"granted_length": 100})
    await stream.say(3, grant={"granted_length": 13})
    assert (await stream.told(11)).position == 12
    await stream.say(3, stop={})
    assert (await stream.told(4000)).end == verifier_pb2.RUN_END_STOPPED


async def test_a_stream_that_repeats_a_start_does_not_take_the_run_along(services: Services) -> None:
    first, second = Stream(services), Stream(services)
    await first.start(1, 60, 12)
    await first.told(10)
    await second.start(1, 60, 12)
    await second.say(1, grant={"granted_length": 13})
    await first.told(11)
    second.call.cancel()
    await asyncio.sleep(0.2)
    await first.say(1, grant={"granted_length": 60})
    assert (await first.told(60)).end == verifier_pb2.RUN_END_UNTIL


async def test_a_killed_stream_stops_its_runs(services: Services) -> None:
    stream = Stream(services)
    await stream.start(1, 4000, 12)
    await stream.told(10)
    stream.call.cancel()
    for _ in range(1000):
        if all(run.answered for run in services.verifier._rounds.values()):
            break
        await asyncio.sleep(0.01)
    steps = services.verifier.load.step_count
    later = Stream(services)
    await later.say(1, grant={"granted_length": 2**31 - 1})
    await later.start(2, 12, 12)
    await later.told(10)
    assert services.verifier.load.step_count <= steps + 10
