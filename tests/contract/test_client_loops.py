"""An asyncio client and event loops: made where none runs, used where one does."""

from __future__ import annotations

import asyncio
import threading

import pytest

from slipstream.client import AsyncClient
from tests.fake_orchestrator import TEXT, FakeOrchestrator, serving


async def said(client: AsyncClient) -> str:
    reply = await client.generate("x")
    return (await reply.wait()).text


def test_a_client_may_be_made_before_its_event_loop_runs() -> None:
    with serving(FakeOrchestrator()) as address:
        client = AsyncClient(address)

        async def use() -> str:
            async with client:
                return await said(client)

        assert asyncio.run(use()) == TEXT


def test_a_client_may_be_made_in_a_thread_without_an_event_loop() -> None:
    made: list[AsyncClient | BaseException] = []

    def make() -> None:
        try:
            made.append(AsyncClient("127.0.0.1:1"))
        except BaseException as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert isinstance(made[0], AsyncClient), made[0]


def test_without_an_event_loop_a_client_says_where_to_use_it() -> None:
    with pytest.raises(RuntimeError, match="no event loop runs: use it inside a coroutine"):
        _ = AsyncClient("127.0.0.1:1").stub


def test_on_a_second_event_loop_a_client_says_that_it_belongs_to_the_first() -> None:
    with serving(FakeOrchestrator()) as address:
        client = AsyncClient(address)
        first = asyncio.new_event_loop()
        assert first.run_until_complete(said(client)) == TEXT
        with pytest.raises(RuntimeError, match="make one for each loop"):
            asyncio.run(said(client))
        first.run_until_complete(client.close())
        first.close()


def test_a_client_that_was_never_used_closes() -> None:
    asyncio.run(AsyncClient("127.0.0.1:1").close())
