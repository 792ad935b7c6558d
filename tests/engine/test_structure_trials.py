"""Trying structures in processes of their own: limits, slots, callers that leave, what is kept."""

import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Callable

import psutil
import pytest

from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_errors import InvalidStructureError, StructureUnsupportedError
from slipstream.structures import trial_process
from slipstream.structures.limits import CompileLimits
from slipstream.structures.trials import (
    MOST_WAITING,
    PROCESS_COUNT,
    StructureQueueFullError,
    StructureTrialError,
    StructureTrials,
)

TOKENIZER_JSON = (embedded_directory("target") / "tokenizer.json").read_bytes()


def schema(content: object) -> Structure:
    return Structure(StructureKind.JSON_SCHEMA, json.dumps(content))


def multiples(first: int, second: int) -> Structure:
    """Compiles for as many states as the product of both."""
    return schema({"allOf": [{"type": "integer", "multipleOf": first}, {"type": "integer", "multipleOf": second}]})


ENDLESS = multiples(4999, 4993)
LARGE = schema({"properties": {f"p{n}": {"type": "string"} for n in range(2000)}})  # some 20 MiB
PLAIN = Structure(StructureKind.REGEX, "[a-z]+")


@contextlib.asynccontextmanager
async def trials(
    limits: CompileLimits | None = None, end_token_ids: tuple[int, ...] = (2,)
) -> AsyncIterator[StructureTrials]:
    made = StructureTrials(TOKENIZER_JSON, 4096, end_token_ids, limits)
    try:
        yield made
    finally:
        pids = made.pids
        await made.close()
        assert not any(map(psutil.pid_exists, pids))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):  # a bound, not a speed
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def spent_seconds(processes: list[psutil.Process]) -> dict[int, float]:
    """Processor time by process."""
    return {process.pid: process.cpu_times().user for process in processes}


@pytest.mark.parametrize(
    ("structure", "limits", "limit"),
    [
        (ENDLESS, CompileLimits(seconds=0.3, memory_mib=1024), "0.3 s of processor time (--structure-compile-seconds)"),
        (LARGE, CompileLimits(seconds=60, memory_mib=4), "4 MiB of memory (--structure-memory-mib)"),
        (PLAIN, CompileLimits(source_bytes=4), "at most 4 bytes (--structure-source-bytes), but has 6"),
    ],
    ids=["seconds", "memory", "bytes"],
)
async def test_a_structure_past_a_limit_is_refused_by_the_limits_name(
    structure: Structure, limits: CompileLimits, limit: str
) -> None:
    async with trials(limits) as tried:
        for _ in range(2):
            with pytest.raises(InvalidStructureError) as caught:
                await tried.check(structure, "alice")
            (violation,) = caught.value.violations
            assert violation.field == "settings.structure" and limit in violation.description
        assert tried.counts.total() <= 1, "a refusal is kept"
        if limits.source_bytes > 10:
            assert await tried.check(PLAIN, "alice") >= 0, "another process takes the place"


async def test_what_comes_of_a_structure_is_the_compilers_word() -> None:
    async with trials() as tried:
        with pytest.raises(InvalidStructureError, match='Unimplemented keys: \\["not"\\]'):
            await tried.check(schema({"not": {}}), "alice")
        with pytest.raises(InvalidStructureError, match="half a surrogate pair"):
            await tried.check(Structure(StructureKind.REGEX, "\ud800"), "alice")
    async with trials(end_token_ids=()) as tried:
        with pytest.raises(StructureUnsupportedError, match="names none"):
            await tried.check(PLAIN, "alice")


@pytest.mark.parametrize(
    "structure",
    [
        schema({"anyOf": [{"properties": {f"k{n}": {"type": "integer"}}, "required": [f"k{n}"]} for n in range(400)]}),
        schema({"anyOf": [{"const": f"value {n}"} for n in range(400)]}),
        LARGE,
        schema({"type": "string", "maxLength": 60_000}),
        schema({"type": "integer", "multipleOf": 60}),
    ],
    ids=["alternatives", "constants", "properties", "length", "multiple"],
)
async def test_large_structures_compile_within_the_limits(structure: Structure) -> None:
    async with trials() as tried:
        assert await tried.check(structure, "alice") < 64 * 2**20


async def test_a_caller_that_leaves_ends_its_trial() -> None:
    async with trials(CompileLimits(seconds=600, memory_mib=100_000)) as tried:
        await tried.check(PLAIN, "alice")
        await until(lambda: len(tried.pids) == PROCESS_COUNT)
        processes = [psutil.Process(pid) for pid in tried.pids]
        before = spent_seconds(processes)
        asked = asyncio.create_task(tried.check(ENDLESS, "alice"))
        await until(lambda: any(now > before[pid] + 0.05 for pid, now in spent_seconds(processes).items()))
        spent = spent_seconds(processes)
        pid = max(before, key=lambda each: spent[each] - before[each])
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        assert await tried.check(PLAIN, "alice") >= 0


async def test_a_check_that_waits_for_a_start_ends_with_the_service() -> None:
    made = StructureTrials(TOKENIZER_JSON, 4096, (2,))
    waiting = [asyncio.create_task(made.check(PLAIN, name)) for name in ("alice", "bob", "carol", "carol")]
    await asyncio.sleep(0)
    await until(lambda: bool(made._starting))
    async with asyncio.timeout(120):
        await made.close()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, StructureTrialError) and "stopping" in str(outcome)
    assert not made.pids and not made._tasks
    with pytest.raises(StructureTrialError, match="is stopping"):
        await made.check(PLAIN, "alice")
    assert not made._tasks


async def test_a_check_that_runs_ends_with_the_service() -> None:
    made = StructureTrials(TOKENIZER_JSON, 4096, (2,), CompileLimits(seconds=600, memory_mib=100_000))
    await made.check(PLAIN, "alice")
    asked = [asyncio.create_task(made.check(ENDLESS, "alice")) for _ in range(2)]
    await until(lambda: bool(made._busy))
    pids = made.pids
    async with asyncio.timeout(120):
        await made.close()
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(outcome, StructureTrialError)
    assert not made.pids and not made._tasks
    assert not any(map(psutil.pid_exists, pids))


async def test_a_start_that_fails_is_logged_in_one_line_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unhandled: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    monkeypatch.setattr(trial_process, "module_command", lambda module: [sys.executable, "-c", FAILS])
    made = StructureTrials(TOKENIZER_JSON, 4096, (2,))
    for _ in range(2):
        with pytest.raises(StructureTrialError, match="cannot start"):
            await made.check(PLAIN, "alice")
    await made.close()
    gc.collect()
    await asyncio.sleep(0)
    assert not unhandled
    assert {record.levelname for record in caplog.records} == {"ERROR"} and len(caplog.records) <= 2 * PROCESS_COUNT
    for record in caplog.records:
        assert record.exc_info is None and "\n" not in record.getMessage()
        assert record.getMessage().endswith("the process ended during its start with 3: OSError: no room")


FAILS = """
import sys
print("Traceback" * 100_000, file=sys.stderr)
print("OSError: no room", file=sys.stderr)
sys.exit(3)
"""


async def test_a_large_tokenizer_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes through the pipe as it is, in pieces that let others go on."""
    sent: list[int] = []
    write = asyncio.StreamWriter.write

    def counted(self: asyncio.StreamWriter, data: bytes) -> None:
        sent.append(len(data))
        write(self, data)

    monkeypatch.setattr(asyncio.StreamWriter, "write", counted)
    spaced = TOKENIZER_JSON + b" " * 2**24
    made = StructureTrials(spaced, 4096, (2,))
    try:
        assert await made.check(PLAIN, "alice") >= 0
        assert max(sent) <= 2**18
        assert not [value for value in vars(made).values() if isinstance(value, str) and len(value) > 2**20]
        assert any(value is spaced for value in vars(made).values()), "no copy is kept"
    finally:
        await made.close()


async def test_a_caller_that_floods_waits_for_its_own_slot() -> None:
    async with trials(CompileLimits(seconds=600, memory_mib=100_000)) as tried:
        flood = [
            asyncio.create_task(tried.check(multiples(4999, 4801 + n), "mallory")) for n in range(MOST_WAITING + 1)
        ]
        await until(lambda: bool(tried.pids))
        await tried.check(PLAIN, "alice")
        assert len(tried.pids) <= 2 and not any(task.done() for task in flood)
        with pytest.raises(StructureQueueFullError):
            await tried.check(schema({"const": 1}), "mallory")
        assert await tried.check(PLAIN, "mallory") >= 0, "what is known needs no slot"
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_no_wait_is_longer_than_what_the_limits_make_of_it() -> None:
    async with trials(CompileLimits(seconds=0.1)) as tried:
        began = time.monotonic()
        for other in range(3):
            with pytest.raises(InvalidStructureError):
                await tried.check(multiples(4999, 4801 + other), "mallory")
        assert time.monotonic() - began < 120  # a bound, not a speed
