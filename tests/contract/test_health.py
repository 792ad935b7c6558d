"""Whether a peer serves: heard soon, from changes of its health and from its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifiers import Verifiers
from slipstream.cli.local import free_address
from slipstream.rpc.server import Server


class Peers:
    """A server that only has health, and the verifiers at its address."""

    def __init__(self) -> None:
        self.address = free_address()
        self.server = Server(self.address, ())
        self.changes: list[bool] = []
        self._changed = asyncio.Event()

    async def start(self) -> None:
        await self.server.start()
        self.verifiers = Verifiers([VerifierPeer(self.address)])
        self.verifiers.on_reachable_changed(self._note)

    def _note(self) -> None:
        self.changes.append(self.verifiers.reachable)
        self._changed.set()

    @property
    def peer(self) -> VerifierPeer:
        return self.verifiers.peers[0]

    async def until(self, reachable: bool) -> None:
        async with asyncio.timeout(60):
            while self.verifiers.reachable != reachable:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    peers = Peers()
    await peers.start()
    yield peers
    await peers.verifiers.close()
    await peers.server.grpc.stop(0)


async def test_a_peer_is_reachable_while_it_serves(peers: Peers) -> None:
    peers.verifiers.admit(peers.peer)
    peers.peer._health.watch()
    for serving in (True, False, True):
        await peers.server.set_serving(serving)
        await peers.until(serving)
        assert peers.peer.trouble == ("" if serving else "it does not serve yet")
    await peers.server.grpc.stop(0)
    await peers.until(False)
    peers.server = Server(peers.address, ())
    await peers.server.start()
    await peers.server.set_serving(True)
    await peers.until(True)
    assert peers.changes == [False, True, False, True, False, True]  # the first at admission


async def test_a_peer_that_is_started_again_at_once_is_noticed_though_it_serves_all_the_time(peers: Peers) -> None:
    await peers.server.set_serving(True)
    health = peers.peer._health
    async with asyncio.timeout(60):
        await health.wait_until_serving()
        for _ in range(3):
            count = health.interruption_count
            await peers.server.grpc.stop(0)
            peers.server = Server(peers.address, ())
            await peers.server.start()
            await peers.server.set_serving(True)
            await health.wait_until_interrupted(count)
            await health.wait_until_serving()


async def test_a_peer_that_is_not_in_use_makes_nothing_reachable(peers: Peers) -> None:
    await peers.server.set_serving(True)
    async with asyncio.timeout(60):
        await peers.peer._health.wait_until_serving()
    assert peers.peer.reachable and not peers.verifiers.reachable
    peers.verifiers.admit(peers.peer)
    assert peers.verifiers.reachable
