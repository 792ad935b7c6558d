"""A verifier that is there and loads its model is waited for; one that is away is given up after
the patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from orchestrator.errors import VerifierLostError
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifiers import Verifiers
from orchestrator.rounds.verification import VerifierSide
from orchestrator.speculation.proposal import NOTHING_PROPOSED
from slipstream.hosting.loading_gate import RefusesWhileLoading
from slipstream.rpc.server import Server
from slipstream.rpc.status import error_of_call
from slipstream.wire.v1 import model_pb2, model_pb2_grpc, verifier_pb2_grpc
from tests.contract.test_peers import INFO, RULE, Service
from tests.scripted_peers import new_note

PATIENCE = 2.0


class Loading:
    """A service as its process runs it: it listens, then loads, then serves."""

    def __init__(self) -> None:
        self.server = Server("127.0.0.1:0", ())
        self.gate = RefusesWhileLoading()

    async def listen(self) -> None:
        self.server.grpc.add_generic_rpc_handlers((self.gate,))
        self.address = f"127.0.0.1:{await self.server.start()}"
        self.peer = VerifierPeer(self.address)
        self.peer.info = INFO
        self.verifiers = Verifiers([self.peer])
        self.verifiers.admit(self.peer)
        self.peer._health.watch()

    async def load(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Service(), self.server.grpc)
        self.gate.loaded = True
        await self.server.set_serving(True)

    async def verify(self) -> int:
        side = VerifierSide(self.verifiers, INFO, lease_seconds=60.0, patience_seconds=PATIENCE)
        answer = await side.verify(PeerSequence(), [5, 6, 7], NOTHING_PROPOSED, RULE, None, new_note())
        return answer.next_token


@pytest.fixture
async def loading() -> AsyncIterator[Loading]:
    loading = Loading()
    await loading.listen()
    yield loading
    await loading.verifiers.close()
    await loading.server.grpc.stop(0)


async def test_a_verifier_that_loads_for_longer_than_the_patience_costs_no_turn(loading: Loading) -> None:
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(loading.verify())
        tasks.create_task(loading.load(2 * PATIENCE))
    assert answer.result() == RULE.seed


async def test_a_verifier_that_is_away_is_given_up_after_the_patience(loading: Loading) -> None:
    await loading.server.grpc.stop(0)
    with pytest.raises(VerifierLostError):
        await loading.verify()


async def test_a_loading_service_tells_its_callers_so(loading: Loading) -> None:
    async with grpc.aio.insecure_channel(loading.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await model_pb2_grpc.ModelServiceStub(channel).GetModelInfo(model_pb2.GetModelInfoRequest())
    error = error_of_call(caught.value)
    assert (error.reason, error.retry_after) == ("LOADING", 1.0)
