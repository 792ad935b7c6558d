"""What a host says of rounds that have no answer yet: a peer that waits for one believes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings
from slipstream.engine.engine import Engine
from slipstream.engine.host import EngineHost, HostLimits
from slipstream.engine.job import Statement
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import Sequence
from slipstream.errors import FieldViolation
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_errors import InvalidStructureError
from verifier_service.verifier import VerifyJob

STRUCTURED = SamplingRule(structure=Structure(StructureKind.REGEX, "[ab]+"))


class Ended:
    """Hears that a round has ended."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def parts_done(self, parts: object) -> None:
        raise AssertionError

    def done(self, job: VerifyJob) -> None:
        self.event.set()

    def failed(self, error: Exception) -> None:
        raise error


class Compiler:
    """Takes until it is told to go on, and then refuses."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def validate(self, structure: Structure, byte_count: int) -> None:
        assert self.go_on.wait(30)
        raise InvalidStructureError([FieldViolation("structure", "never")])


@pytest.fixture
async def host() -> AsyncIterator[EngineHost[VerifyJob]]:
    def load() -> Engine:
        return Engine(ArithmeticBackend(ArithmeticSettings(ends=0)), kv_memory_mib=1)

    host: EngineHost[VerifyJob] = EngineHost(load, BatchLimits(), HostLimits())
    await host.start()
    host.open_handle("a", None)
    yield host
    await host.stop()


def job(sequence: Sequence, rule: SamplingRule = STRUCTURED) -> VerifyJob:
    return VerifyJob(sequence, Statement(0, (5, 6)), (), rule, [], None)


async def test_a_round_is_unfinished_until_its_answer_is_told(host: EngineHost[VerifyJob]) -> None:
    rule, ended = SamplingRule(), Ended()
    assert host.load.unfinished_count == 0
    assert host.run_round("a", 1, rule, lambda sequence: job(sequence, rule), ended, content=()) is None
    assert host.load.unfinished_count == 1
    await ended.event.wait()
    assert host.load.unfinished_count == 0


async def test_so_is_one_whose_structure_is_being_compiled(host: EngineHost[VerifyJob]) -> None:
    compiler = Compiler()
    host.engine.matchers.compiler = compiler  # type: ignore[assignment]
    begun = host.run_round("a", 1, STRUCTURED, job, Ended(), content=())
    assert begun is not None
    running = asyncio.create_task(begun)
    await asyncio.sleep(0)
    assert host.load.unfinished_count == 1
    compiler.go_on.set()
    with pytest.raises(InvalidStructureError):
        await running
    assert host.load.unfinished_count == 0
