"""Drafts that are added and removed while names are looked up end no process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from orchestrator.processes.peer_discovery import Peers
from orchestrator.processes.settings import OrchestratorSettings
from slipstream.cli.local import free_address
from slipstream.rpc.connector import PLAINTEXT

ADDED, NAMED = "draft-b:50053", "10.255.255.1:50053"


class Lookups:
    """A name server that answers when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.set()
        await self.answers.wait()
        return [f"127.0.0.1:{port}"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - these things tell no event loop
            await asyncio.sleep(0.02)


class OverError(Exception):
    """Ends the tasks, which never end by themselves."""


@asynccontextmanager
async def connecting(lookups: Lookups, draft: str = "") -> AsyncIterator[tuple[Peers, asyncio.Task[object]]]:
    """Peers that wait for a verifier, and their task."""
    all_flags = ["--verifier", free_address(), "--resolve-seconds", "0.1", f"--draft={draft}"]
    settings = OrchestratorSettings(_cli_parse_args=all_flags)
    peers = Peers(settings, PLAINTEXT, lookups)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(peers.connect(tasks))
            await asyncio.sleep(0)
            yield peers, task
            raise OverError
    except* OverError:
        await peers.close()


async def test_a_draft_may_be_removed_while_its_name_is_looked_up() -> None:
    lookups = Lookups()
    async with connecting(lookups) as (peers, _):
        adding = asyncio.create_task(peers.add_draft(ADDED))
        await lookups.asked.wait()
        peers.remove_draft(ADDED)
        lookups.answers.set()
        await adding
        await until(lambda: not peers.drafts._retired)
        assert peers._following is not None and not peers._following.done()
        assert not peers.draft_names and [peer.role for peer in peers.all] == ["verifier"]


async def test_drafts_may_be_added_and_removed_while_another_name_is_looked_up() -> None:
    lookups = Lookups()
    async with connecting(lookups, "draft-a:50053") as (peers, _):
        await lookups.asked.wait()
        adding = asyncio.create_task(peers.add_draft(NAMED))
        await until(lambda: NAMED in peers.draft_names)
        peers.remove_draft("draft-a:50053")
        lookups.answers.set()
        await adding
        await until(lambda: [peer.address for peer in peers.all if peer.role == "draft"] == [NAMED])
        assert peers._following is not None and not peers._following.done()


async def test_a_draft_that_is_removed_before_there_is_a_target_ends_no_wait_for_it() -> None:
    async with connecting(Lookups()) as (peers, task):
        await peers.add_draft(NAMED)
        await until(lambda: [peer.role for peer in peers.all] == ["verifier", "draft"])
        await asyncio.sleep(0)  # its task waits for the target
        peers.remove_draft(NAMED)
        await until(lambda: [peer.role for peer in peers.all] == ["verifier"])
        await asyncio.sleep(0)
        assert not task.done() and not peers._first.cancelled()
