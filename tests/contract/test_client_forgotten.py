"""How each client ends turns in its own way: the blocking one by the collector, the asyncio one by
a task's cancellation."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

from slipstream.client import AsyncClient, Client
from tests.either_client import tasks_left, until
from tests.fake_orchestrator import FakeOrchestrator, serving


def test_a_forgotten_reply_ends_its_turn() -> None:
    fake = FakeOrchestrator(pause_at=10)
    with serving(fake) as address, Client(address) as client:
        client.create_session().send("x")
        until(lambda: fake.cancelled.get(1, threading.Event()).is_set())


def test_a_reply_that_a_collector_finds_while_it_is_being_closed_does_not_wait_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeOrchestrator(pause_at=10)
    with serving(fake) as address, Client(address) as client:
        reply = client.create_session().send("x")
        pieces = iter(reply)
        next(pieces)
        garbage: list[Any] = [pieces]
        garbage.append(garbage)
        del pieces, garbage
        cancel_turn = client.stub.CancelTurn

        def collecting(*arguments: Any, **named: Any) -> Any:
            gc.collect()
            return cancel_turn(*arguments, **named)

        monkeypatch.setattr(client.stub, "CancelTurn", collecting)
        reply.close()
        assert fake.cancelled[1].is_set()


PROGRAM = """
import sys
from slipstream.client import Client
reply = Client(sys.argv[1]).generate("x")
deltas = reply.deltas()
next(deltas)
"""


def test_a_program_that_ends_in_mid_reply_ends_the_turn_and_does_not_hang() -> None:
    fake = FakeOrchestrator(pause_at=10)
    with serving(fake) as address:
        subprocess.run([sys.executable, "-c", PROGRAM, address], timeout=120, check=True, capture_output=True)
        assert fake.cancelled[1].is_set()


def test_a_task_that_is_cancelled_in_mid_reply_ends_its_turn() -> None:
    fake = FakeOrchestrator(pause_at=10)

    async def main(address: str) -> None:
        async with AsyncClient(address) as client:
            reply = await client.generate("x")
            reading = asyncio.create_task(reply.wait())
            await asyncio.to_thread(until, lambda: len(reply.result.token_ids) == 10)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert fake.cancelled[1].is_set()
            async for _ in await client.generate("y"):
                break
        assert fake.cancelled[2].is_set()
        assert await tasks_left() == []

    with serving(fake) as address:
        asyncio.run(main(address))
