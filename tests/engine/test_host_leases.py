"""A handle lives as long as it is used: what renews its lease, and what ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings
from slipstream.engine.engine import Engine
from slipstream.engine.errors import InvalidItemError, UnknownHandleError
from slipstream.engine.host import EngineHost, HostLimits
from slipstream.engine.job import Statement
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import Sequence
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from tests.clock import Clock
from verifier_service.verifier import VerifyJob

LEASE = 10.0
RULE = SamplingRule()


class SlowBackend(ArithmeticBackend):
    """Computes once it may."""

    def __init__(self) -> None:
        super().__init__(ArithmeticSettings(ends=0))
        self.may_compute = threading.Event()
        self.may_compute.set()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        assert self.may_compute.wait(30)
        return super().forward(*args, **kwargs)


class Answer:
    """Hears of a round's answer."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def parts_done(self, parts: object) -> None:
        raise AssertionError

    def done(self, job: VerifyJob) -> None:
        self.event.set()

    def failed(self, error: Exception) -> None:
        raise error


class Hosted:
    """A host whose clock the test moves, with one handle open."""

    def __init__(self) -> None:
        self.clock, self.backend = Clock(), SlowBackend()
        limits = HostLimits(default_lease_seconds=LEASE, sweep_seconds=0.01)
        self.host: EngineHost[VerifyJob] = EngineHost(self.load, BatchLimits(), limits, clock=self.clock)
        self.ended: list[str] = []
        self.swept = asyncio.Event()

    def note(self, handle: str) -> None:
        if handle == "other":
            self.swept.set()
        else:
            self.ended.append(handle)

    def load(self) -> Engine:
        return Engine(self.backend, kv_memory_mib=1)

    def ask(self, number: int) -> Answer:
        def job(sequence: Sequence) -> VerifyJob:
            return VerifyJob(sequence, Statement(0, (5, 6)), (), RULE, [], None)

        answer = Answer()
        assert self.host.run_round("a", number, RULE, job, answer, content=()) is None
        return answer

    async def until_swept(self) -> None:
        """A handle that has nothing to renew its lease has been taken out: so the sweep has seen
        all others too."""
        self.host.open_handle("other", 0.001)
        self.swept.clear()  # opening a handle ends what had its name before
        self.clock.now += 0.001
        await asyncio.wait_for(self.swept.wait(), 60)

    async def is_open(self) -> bool:
        await self.until_swept()
        return "a" not in self.ended


@pytest.fixture
async def hosted() -> AsyncIterator[Hosted]:
    hosted = Hosted()
    await hosted.host.start()
    hosted.host.open_handle("a", None)
    hosted.host.on_closed = hosted.note
    yield hosted
    hosted.backend.may_compute.set()
    await hosted.host.stop()


async def test_a_handle_ends_when_it_is_idle_for_a_lease_and_not_before(hosted: Hosted) -> None:
    hosted.clock.now += LEASE - 1
    assert await hosted.is_open()
    hosted.clock.now += 1
    assert not await hosted.is_open()
    with pytest.raises(UnknownHandleError):
        hosted.host.renew_lease("a")


async def test_a_repeated_round_renews_the_lease_though_its_answer_is_there(hosted: Hosted) -> None:
    await hosted.ask(1).event.wait()
    hosted.clock.now += LEASE - 1
    await hosted.ask(1).event.wait()
    hosted.clock.now += LEASE - 1
    assert await hosted.is_open()
    hosted.clock.now += 1
    assert not await hosted.is_open()


async def test_what_is_said_of_a_handle_renews_its_lease(hosted: Hosted) -> None:
    hosted.clock.now += LEASE - 1
    hosted.host.renew_lease("a")
    hosted.clock.now += LEASE - 1
    assert await hosted.is_open()


async def test_idle_time_starts_with_the_answer(hosted: Hosted) -> None:
    hosted.backend.may_compute.clear()
    answer = hosted.ask(1)
    hosted.clock.now += LEASE - 1
    hosted.backend.may_compute.set()
    await answer.event.wait()
    hosted.clock.now += LEASE - 1
    assert await hosted.is_open()
    hosted.clock.now += 1
    assert not await hosted.is_open()


async def test_a_long_round_is_not_idleness(hosted: Hosted) -> None:
    hosted.backend.may_compute.clear()
    answer = hosted.ask(1)
    for _ in range(3):
        hosted.clock.now += LEASE
        assert await hosted.is_open()
        hosted.host.open_handle("a", None)
        again = hosted.ask(1)  # its caller has lost the stream, and asks on another
    hosted.backend.may_compute.set()
    await answer.event.wait()
    await again.event.wait()
    assert hosted.ended == []
    hosted.clock.now += LEASE - 1
    assert await hosted.is_open()


async def test_a_round_of_a_handle_whose_lease_is_over_is_refused_before_the_sweep(hosted: Hosted) -> None:
    hosted.clock.now += LEASE
    with pytest.raises(UnknownHandleError):  # nothing has been awaited: the sweep has not seen it
        hosted.ask(1)


async def test_a_handle_opened_again_just_after_its_lease_begins_with_nothing(hosted: Hosted) -> None:
    await hosted.ask(5).event.wait()
    hosted.clock.now += LEASE
    hosted.host.open_handle("a", None)
    assert hosted.ended == ["a"]
    await hosted.ask(1).event.wait()  # round 1 after round 5 would be stale


async def test_a_host_that_has_closed_sweeps_no_more() -> None:
    before = asyncio.all_tasks()
    hosted = Hosted()
    await hosted.host.start()
    assert asyncio.all_tasks() != before
    await hosted.host.stop()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_closed_handle_comes_back_at_once_and_is_never_opened_again(hosted: Hosted) -> None:
    await hosted.ask(1).event.wait()
    hosted.host.close_handle("a")
    assert hosted.ended == ["a"]
    with pytest.raises(UnknownHandleError):
        hosted.host.renew_lease("a")
    with pytest.raises(UnknownHandleError, match="closed"):
        hosted.host.open_handle("a", None)


class Failure(Answer):
    """Hears of a round's failure."""

    error: Exception | None = None

    def failed(self, error: Exception) -> None:
        self.error = error
        self.event.set()


async def test_a_structure_is_refused_by_a_service_that_compiles_none(hosted: Hosted) -> None:
    rule = SamplingRule(structure=Structure(StructureKind.REGEX, "a+"))
    assert hosted.host.engine.matchers.compiler is None
    answer = Failure()

    def job(sequence: Sequence) -> VerifyJob:
        return VerifyJob(sequence, Statement(0, (5, 6)), (), rule, [], None)

    assert hosted.host.run_round("a", 1, rule, job, answer, content=()) is None, "nothing to wait for"
    await asyncio.wait_for(answer.event.wait(), 60)
    assert isinstance(answer.error, InvalidItemError) and "without structured output" in str(answer.error)


async def test_who_cannot_take_its_answer_is_told_so_and_others_get_theirs(hosted: Hosted) -> None:
    class Broken(Failure):
        def done(self, job: VerifyJob) -> None:
            raise ValueError("no room for it")

    hosted.backend.may_compute.clear()
    first, broken, last = hosted.ask(1), Broken(), Answer()

    def job(sequence: Sequence) -> VerifyJob:
        raise AssertionError("it runs already")

    for listener in (broken, last):
        assert hosted.host.run_round("a", 1, RULE, job, listener, content=()) is None
    hosted.backend.may_compute.set()
    for listener in (first, broken, last):
        await asyncio.wait_for(listener.event.wait(), 60)
    assert isinstance(broken.error, ValueError)
    late = Broken()
    hosted.host.run_round("a", 1, RULE, job, late, content=())
    assert isinstance(late.error, ValueError), "it is answered by now"


async def test_a_handle_with_an_answer_is_evicted_after_one_without(hosted: Hosted) -> None:
    await hosted.ask(1).event.wait()
    hosted.host.open_handle("b", None)
    assert hosted.host.owners.handle_to_evict("") == "b"
