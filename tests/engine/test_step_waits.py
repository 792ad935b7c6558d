"""What a host says of runs that are ready and sit out steps.

An overloaded verifier shows it, though each run has had its first forward long ago.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from slipstream.engine.arithmetic import ArithmeticSettings
from slipstream.engine.load import Load
from slipstream.engine.run_job import RunEnd
from slipstream.engine.schedule import BatchLimits
from tests.engine.test_runs import Bench, bench, prompt_of


async def load_where(it: Bench, holds: Callable[[Load], bool]) -> Load:
    """The first load for which a condition holds."""
    for _ in range(3000):
        if holds(it.host.load):
            return it.host.load
        await asyncio.sleep(0.01)
    raise AssertionError(it.host.load)


def sat_out_count(steps: list[list[tuple[int, int]]]) -> int:
    """Steps that sequences sat out before their last one."""
    pages = {page for step in steps for page, _ in step}
    seen = [[any(page == mine for mine, _ in step) for step in steps] for page in pages]
    return sum(len(each) - each[::-1].index(True) - sum(each) for each in seen)


async def test_each_step_that_a_run_sits_out_for_want_of_a_place_is_counted() -> None:
    async with bench(batch_limits=BatchLimits(max_step_tokens=5), profiled=False) as it:
        it.backend.may_compute.clear()
        ears = [it.start(str(n), prompt_of(n, 4), 12) for n in range(16)]
        it.backend.may_compute.set()
        assert [await ear.end() for ear in ears] == [RunEnd.UNTIL] * 16
        await it.quiet()
        waits = it.host.load.waits
        least = sat_out_count(it.backend.steps[1:])  # not all runs had come before the first step
        assert 16 * 8 < least <= waits.step_counts["place"] <= least + 15
        assert waits.seconds["place"] > 0 and waits.step_counts["pages"] == 0
        assert (waits.count, waits.oldest) == (0, 0.0)


async def test_runs_that_found_no_place_in_the_last_step_wait_and_the_others_run() -> None:
    slow = ArithmeticSettings(ends=0, forward_ms=2)
    async with bench(batch_limits=BatchLimits(max_step_tokens=5), settings=slow, profiled=False) as it:
        ears = [it.start(str(n), prompt_of(n, 4), 3000) for n in range(16)]
        for ear in ears:
            await ear.until_told(4)
        load = await load_where(it, lambda load: load.running_count == 5)
        assert (load.waiting_count, dict(load.waits.counts)) == (11, {"step": 0, "place": 11, "pages": 0})
        assert (await load_where(it, lambda load: load.waits.oldest > 0)).sat_out_count > 0
        for n in range(16):
            it.stop(str(n))
        assert {await ear.end() for ear in ears} == {RunEnd.STOPPED}


async def test_a_run_that_has_lost_its_pages_waits_for_them() -> None:
    async with bench(page_count=30) as it:
        first, second = (it.start(name, prompt_of(seed, 100), 320) for seed, name in enumerate("ab"))
        assert await first.end() is RunEnd.UNTIL
        assert await second.end() is RunEnd.UNTIL
        waits = it.host.load.waits
        assert waits.step_counts["pages"] > 50 and waits.step_counts["place"] == 0
        assert waits.seconds["pages"] > 0


async def test_an_item_before_its_first_step_waits_for_one() -> None:
    async with bench() as it:
        it.backend.may_compute.clear()
        ear = it.start("a", prompt_of(1, 4), 8)
        load = await load_where(it, lambda load: load.waiting_count == 1)
        it.backend.may_compute.set()
        assert (load.running_count, load.waits.counts["step"]) == (0, 1)
        assert await ear.end() is RunEnd.UNTIL


async def test_a_paused_run_neither_runs_nor_waits() -> None:
    async with bench() as it:
        ear = it.start("a", prompt_of(1, 20), 60, 40)
        await ear.until_told(20)
        await it.quiet()
        load = it.host.load
        assert (load.paused_count, load.running_count, load.waiting_count) == (1, 0, 0)
        it.grant("a", 60)
        assert await ear.end() is RunEnd.UNTIL
        assert it.host.load.paused_count == 0


async def test_the_load_may_be_read_while_it_changes() -> None:
    """The metrics are read on another thread."""
    async with bench(batch_limits=BatchLimits(max_step_tokens=5), profiled=False) as it:
        over, faults = threading.Event(), []

        def read() -> None:
            while not over.is_set():
                try:
                    load = it.host.load
                    assert load.waiting_count == load.waits.count
                except Exception as error:
                    faults.append(error)
                    return

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(3):
            ears = [it.start(str(n), prompt_of(n, 4), 30) for n in range(16)]
            assert [await ear.end() for ear in ears] == [RunEnd.UNTIL] * 16
        over.set()
        reader.join()
        assert not faults
