"""What a peer puts on its stream: rules, closings and nothing else, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.exchange import Terms
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifiers import Verifiers
from orchestrator.rounds.verification import VerifierSide
from orchestrator.speculation.proposal import NOTHING_PROPOSED
from slipstream.hosting.rules import RuleBook, UnknownRuleError
from slipstream.rpc.channel import SERVER_OPTIONS
from slipstream.rpc.item_answers import Answer, answer_items
from slipstream.rpc.sampling_wire import rule_of
from slipstream.rpc.status import PeerError, status_of
from slipstream.sampling.rule import SamplingDefaults, SamplingRule
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from tests.lock_step_verifier import LockStepVerifier
from tests.scripted_peers import new_note

INFO = ModelInfo("m", "A", 100, "t", 4096, (2,), SamplingDefaults(), "float32", "cpu", 32, "w", 2)
TERMS = Terms("t", "w", 60.0)
RULE = SamplingRule(temperature=0.5, seed=3)


class Service(LockStepVerifier, draft_pb2_grpc.DraftServiceServicer):
    """Keeps every item, knows the rules it was told, and answers the seed of an item's rule; the
    draft never answers."""

    def __init__(self) -> None:
        self.items: list[verifier_pb2.VerifyItem] = []
        self.rules = RuleBook()
        self.stream_count = 0
        self.cut_at_closings = 0

    async def Verify(
        self, request_iterator: AsyncIterator[verifier_pb2.VerifyRequest], context: Any
    ) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        self.stream_count += 1
        async for response in answer_items(
            request_iterator,
            self._items,
            self._answer,
            lambda item, error: verifier_pb2.VerifyResult(handle=item.handle, round=item.round, error=status_of(error)),
            lambda results: verifier_pb2.VerifyResponse(results=results),
            asyncio.Event(),
        ):
            yield response

    def _items(self, request: verifier_pb2.VerifyRequest) -> list[verifier_pb2.VerifyItem]:
        if self.cut_at_closings and any(item.HasField("close") for item in request.items):
            self.cut_at_closings -= 1
            raise ConnectionResetError("the test cuts the stream")
        return list(request.items)

    def _answer(self, item: verifier_pb2.VerifyItem, answer: Answer[verifier_pb2.VerifyResult]) -> None:
        self.items.append(item)
        token = 0
        if not item.HasField("close"):
            if item.HasField("rule"):
                self.rules.store_rule(item.handle, item.rule_hash, rule_of(item.rule, 259), 1)
            token = self.rules.find_rule(item.handle, item.rule_hash).seed
        answer.finish(verifier_pb2.VerifyResult(handle=item.handle, round=item.round, next_token=token))

    async def Propose(
        self, request_iterator: AsyncIterator[draft_pb2.ProposeRequest], context: Any
    ) -> AsyncIterator[draft_pb2.ProposeResponse]:
        async for _ in request_iterator:
            if self.stream_count:  # never
                yield draft_pb2.ProposeResponse()

    async def Draft(
        self, request_iterator: AsyncIterator[draft_pb2.DraftRequest], context: Any
    ) -> AsyncIterator[draft_pb2.DraftResponse]:
        raise AssertionError("no guess is asked for")
        yield draft_pb2.DraftResponse()


class Rig:
    def __init__(self) -> None:
        self.service = Service()
        self.port = 0

    async def start(self) -> None:
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self.service, self.server)
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self.service, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()
        self.address = f"127.0.0.1:{self.port}"
        self.verifiers = Verifiers([VerifierPeer(self.address)])
        (peer,) = self.verifiers.peers
        peer.info = INFO
        self.verifiers.admit(peer)
        self.side = VerifierSide(self.verifiers, INFO, lease_seconds=60.0, patience_seconds=5.0)

    async def verify(self, sequence: PeerSequence, rule: SamplingRule = RULE) -> int:
        """One round's next token."""
        answer = await self.side.verify(sequence, [5, 6, 7], NOTHING_PROPOSED, rule, None, new_note())
        return answer.next_token


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.start()
    yield rig
    await rig.verifiers.close()
    await rig.server.stop(0)


async def test_a_rule_is_stated_once_for_a_handle_and_then_named(rig: Rig) -> None:
    sequence, other = PeerSequence(), SamplingRule(temperature=0.5, seed=8)
    got = [await rig.verify(sequence, rule) for rule in (RULE, RULE, other, RULE, other)]
    assert got == [3, 3, 8, 3, 8]
    assert [item.HasField("rule") for item in rig.service.items] == [True, False, True, False, False]
    assert len({item.rule_hash for item in rig.service.items}) == 2


async def test_a_service_that_does_not_know_a_rule_is_told_again_under_a_new_round(rig: Rig) -> None:
    sequence = PeerSequence()
    await rig.verify(sequence)
    rig.service.rules.forget_handle(sequence.handle)
    assert await rig.verify(sequence) == RULE.seed
    _, refused, again = rig.service.items
    assert not refused.HasField("rule") and again.HasField("rule")
    assert (again.handle, again.round) == (refused.handle, refused.round + 1)
    assert not again.HasField("open"), "the handle is known"
    with pytest.raises(UnknownRuleError):
        rig.service.rules.find_rule("another", again.rule_hash)


async def test_a_handle_is_closed_on_the_stream_after_its_rounds(rig: Rig) -> None:
    sequence = PeerSequence()
    rounds = [asyncio.create_task(rig.verify(sequence)) for _ in range(3)]
    await asyncio.sleep(0)  # they are on their way
    handle = sequence.handle
    rig.side.release(sequence)
    await asyncio.gather(*rounds, return_exceptions=True)
    await rig.verify(PeerSequence())
    closings = [item.HasField("close") for item in rig.service.items if item.handle == handle]
    assert closings == [False, False, False, True]
    assert rig.service.stream_count == 1


async def test_closing_a_peer_flushes_the_handles_on_their_way(rig: Rig) -> None:
    sequences = [PeerSequence() for _ in range(5)]
    await asyncio.gather(*map(rig.verify, sequences))
    handles = [sequence.handle for sequence in sequences]
    for sequence in sequences:
        rig.side.release(sequence)
    await rig.verifiers.close()
    assert [item.handle for item in rig.service.items if item.HasField("close")] == handles


async def test_a_session_that_a_peer_never_saw_sends_nothing(rig: Rig) -> None:
    sequence = PeerSequence()
    rig.verifiers.verifier_of(sequence)
    rig.side.release(sequence)
    rig.side.release(PeerSequence())
    await rig.verifiers.close()
    assert rig.service.stream_count == 0


async def test_a_closing_that_is_lost_with_its_stream_goes_out_on_the_next(rig: Rig) -> None:
    sequence = PeerSequence()
    await rig.verify(sequence)
    handle = sequence.handle
    rig.service.cut_at_closings = 1
    rig.side.release(sequence)
    await rig.verifiers.close()
    assert rig.service.stream_count == 2
    assert [item.handle for item in rig.service.items if item.HasField("close")] == [handle]


async def test_a_peer_that_is_away_does_not_keep_the_orchestrator_from_closing(rig: Rig) -> None:
    sequence = PeerSequence()
    await rig.verify(sequence)
    await rig.server.stop(0)
    rig.side.release(sequence)
    async with asyncio.timeout(60):
        await rig.verifiers.close()


class Listening:
    def __init__(self) -> None:
        self.failed: list[PeerError] = []

    def finish(self, proposal: Any, timing: Any) -> None:
        raise AssertionError("the draft never answers")

    def fail(self, error: PeerError) -> None:
        self.failed.append(error)


async def test_a_request_to_the_draft_can_be_withdrawn(rig: Rig) -> None:
    draft, sequence = DraftPeer(rig.address), PeerSequence()
    draft.info = INFO
    kept, withdrawn = Listening(), Listening()
    position = sequence.position([5, 6])
    for sink in (withdrawn, kept):
        withdraw = draft.propose(sequence, TERMS, position, 4, RULE, "", sink)
        if sink is withdrawn:
            withdraw()
    await draft.close()
    assert withdrawn.failed == []
    assert [error.reason for error in kept.failed] == ["STREAM_LOST"]
