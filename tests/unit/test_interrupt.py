"""What waits ends when the event comes, and nothing else does."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.sessions.interrupt import Interrupt


async def test_an_event_ends_what_waits_inside_and_only_that() -> None:
    event = asyncio.Event()
    interrupt = Interrupt(event)
    asyncio.get_running_loop().call_later(0.01, event.set)
    with interrupt.during():
        await asyncio.sleep(30)
        pytest.fail("it should have ended")
    assert interrupt.happened
    await asyncio.sleep(0)  # nothing is left of the cancellation
    current = asyncio.current_task()
    assert current is not None and current.cancelling() == 0
    interrupt.close()


async def test_what_ends_by_itself_is_left_alone() -> None:
    event = asyncio.Event()
    interrupt = Interrupt(event)
    for _ in range(3):
        with interrupt.during():
            await asyncio.sleep(0)
    assert not interrupt.happened
    interrupt.close()
    event.set()
    await asyncio.sleep(0.01)


async def test_an_event_between_two_waits_interrupts_neither() -> None:
    event = asyncio.Event()
    interrupt = Interrupt(event)
    with interrupt.during():
        await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0.01)
    assert interrupt.happened
    interrupt.close()


async def test_a_task_that_others_cancel_ends() -> None:
    interrupt = Interrupt(asyncio.Event())

    async def work() -> None:
        with interrupt.during():
            await asyncio.sleep(30)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    interrupt.close()
