"""Wake-ups of turns whose results have arrived."""

from __future__ import annotations

import asyncio
import time

from orchestrator.peers.delivery import Delivery

BUSY_SECONDS = 0.01


async def test_a_loop_that_is_not_busy_wakes_a_turn_in_its_next_pass() -> None:
    arrived = asyncio.Event()
    Delivery().put(arrived)
    assert not arrived.is_set()
    await asyncio.sleep(0)
    assert arrived.is_set()


async def test_many_turns_that_take_long_are_woken_again_after_a_longer_rest() -> None:
    delivery, first, others = Delivery(), asyncio.Event(), [asyncio.Event(), asyncio.Event()]

    async def turn() -> float:
        await first.wait()
        began = time.thread_time()
        while time.thread_time() < began + BUSY_SECONDS:
            pass
        return time.monotonic()

    running = asyncio.create_task(turn())
    await asyncio.sleep(0)
    for event in [first, *(asyncio.Event() for _ in range(31))]:
        delivery.put(event)
    ended = await running
    for _ in range(5):  # until the delivery has seen how long it took
        await asyncio.sleep(0)
    for each in others:
        delivery.put(each)
    await others[0].wait()
    assert time.monotonic() - ended >= 2 * BUSY_SECONDS
    assert others[1].is_set()
