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

    async def start(
        self,
        number: int,
        until: int,
        granted: int,
        rule: SamplingRule = SamplingRule(),  # noqa: B008
        handle: str = "a" * 32,
        **more: Any,
    ) -> None:
        message = rule_message(rule, 259)
        start = verifier_pb2.StartRun(
            tail=[5, 6], until_length=until, granted_length=granted, rule=message, open={}, **more
        )
        await self.say(number, handle, start=start)

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
    assert b"STALE_ROUND" in (await second.told(1)).error.SerializeToString()
    await first.start(1, 60, 12)  # nothing is said of this one
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


async def test_hints_save_steps_and_change_no_token(services: Services) -> None:
    """The service drops what no hint can be, and the run goes on."""
    stream = Stream(services)
    await stream.start(1, 100, 100)
    text: list[int] = []
    async for result in stream.results():
        text += result.tokens
        if result.end:
            break
    other = "b" * 32
    await stream.start(1, 100, 3, handle=other, takes_ngrams=True, fixed_hint_count=60)
    right = {"start": 3, "tokens": text[1:61], "survivals": [0.9] * 60, "source": 1}
    wrongs: list[dict[str, Any]] = [
        {"tokens": []},
        {"tokens": text[1:66], "survivals": [0.9] * 65},
        {"tokens": [259] * 60},
        {"tokens": [-1] * 60},
        {"survivals": [0.9] * 59},
        {"survivals": [1.5] * 60},
        {"survivals": [float("nan")] * 60},
        {"start": -1},
        {"length_seen": -1},
        {"source": 0},
        {"source": 99},
        {"next_due": {"seconds": -1}},
    ]
    for wrong in wrongs:
        await stream.say(1, other, hint={**right, **wrong})
    await stream.say(2, other, hint=right)
    await stream.say(1, "u" * 32, hint=right)
    await stream.say(1, other, hint={**right, "start": 2**31 - 1})
    await stream.say(1, other, hint={**right, "start": 0})
    await stream.say(1, other, hint=right)
    await stream.say(1, other, grant={"granted_length": 100})
    said: list[int] = []
    steps: list[verifier_pb2.RunStep] = []
    async for result in stream.results():
        assert not result.HasField("error")
        said += result.tokens
        steps += result.steps
        if result.end:
            break
    assert said == text
    assert sum(step.token_count for step in steps) == len(said)
    hinted = [step for step in steps if step.source == 1]
    assert [(step.hint_count, step.accepted_count, step.token_count) for step in hinted] == [(60, 60, 61)]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("fixed_hint_count", {"fixed_hint_count": 65}),
        ("fixed_hint_count", {"fixed_hint_count": -1}),
        ("longest_hold", {"longest_hold": {"seconds": 2}}),
        ("longest_hold", {"longest_hold": {}}),
        ("longest_hold", {"longest_hold": {"seconds": -1}}),
    ],
)
async def test_limits_of_hints_that_make_no_sense_are_refused(
    services: Services, field: str, wrong: dict[str, Any]
) -> None:
    stream = Stream(services)
    await stream.start(1, 20, 20, **wrong)
    assert field.encode() in (await stream.told(1)).error.SerializeToString()
