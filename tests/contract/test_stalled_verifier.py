"""A verifier that has stopped answering is left as a dead one is, over a real socket: its model's
thread hangs, or its process answers nothing at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from orchestrator.errors import VerifierLostError
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifiers import Verifiers
from orchestrator.rounds.verification import VerifierSide
from orchestrator.speculation.proposal import NOTHING_PROPOSED
from slipstream.cli.local import free_address
from slipstream.errors import Code
from slipstream.rpc.item_answers import Answer
from slipstream.rpc.server import Server
from slipstream.rpc.status import PeerError, status_of
from slipstream.wire.v1 import model_pb2, model_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from tests.contract.test_peers import INFO, RULE, Service
from tests.scripted_peers import new_note, right_info

DEADLINE, PATIENCE = 1.0, 4.0
LONG_PATIENCE = 60.0
"""More than a busy machine takes for what has to be done without patience."""
QUICK = 1e-6
"""Seconds a token should take: what is owed adds nothing."""


async def until(condition: Callable[[], object]) -> None:
    """Wait for it to be so."""
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


class Hanging(Service, model_pb2_grpc.ModelServiceServicer):
    """A verifier of which a test says what works: its model's thread, the steps it counts, and
    whether it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(free_address(), ())
        self.hangs = self.is_mute = self.steps_go_on = False
        self.refusal: PeerError | None = None
        self.refusal_count = 0
        self.step_count = 0
        self.unfinished_count: int | None = None
        self.unanswered: list[tuple[verifier_pb2.VerifyItem, Answer[verifier_pb2.VerifyResult]]] = []

    async def start(self, token_seconds: float = QUICK) -> VerifierPeer:
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self, self.server.grpc)
        model_pb2_grpc.add_ModelServiceServicer_to_server(self, self.server.grpc)
        port = await self.server.start()
        await self.server.set_serving(True)
        peer = VerifierPeer(f"127.0.0.1:{port}", DEADLINE)
        peer.steps.profile([(1, token_seconds)])
        peer.info = INFO
        await peer._health.wait_until_serving()
        return peer

    async def GetModelInfo(
        self, request: model_pb2.GetModelInfoRequest, context: Any
    ) -> model_pb2.GetModelInfoResponse:
        return model_pb2.GetModelInfoResponse(model=right_info())

    async def GetTokenizer(
        self, request: model_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        yield model_pb2.GetTokenizerResponse()

    async def GetLoad(self, request: model_pb2.GetLoadRequest, context: Any) -> model_pb2.GetLoadResponse:
        await until(lambda: not self.is_mute)
        self.step_count += self.steps_go_on
        return model_pb2.GetLoadResponse(
            load=model_pb2.Load(step_count=self.step_count, unfinished_count=self.unfinished_count)
        )

    def _answer(self, item: verifier_pb2.VerifyItem, answer: Answer[verifier_pb2.VerifyResult]) -> None:
        if self.refusal is not None and not item.HasField("close"):
            self.refusal_count += 1
            error = status_of(self.refusal)
            answer.finish(verifier_pb2.VerifyResult(handle=item.handle, round=item.round, error=error))
        elif self.hangs and not item.HasField("close"):
            self.unanswered.append((item, answer))
        else:
            super()._answer(item, answer)

    def go_on(self) -> None:
        """Answer everything that it has not answered yet."""
        self.hangs = self.is_mute = False
        unanswered, self.unanswered = self.unanswered, []
        for item, answer in unanswered:
            super()._answer(item, answer)


class Rig:
    """Some such verifiers, and the sessions' way to them."""

    def __init__(self) -> None:
        self.services: list[Hanging] = []
        self.changes: list[bool] = []

    async def start(self, count: int, token_seconds: float = QUICK, patience_seconds: float = PATIENCE) -> None:
        self.services = [Hanging() for _ in range(count)]
        self.verifiers = Verifiers([await service.start(token_seconds) for service in self.services])
        for peer in self.verifiers.peers:
            self.verifiers.admit(peer)
        self.verifiers.on_reachable_changed(lambda: self.changes.append(self.verifiers.reachable))
        self.side = VerifierSide(self.verifiers, INFO, lease_seconds=60.0, patience_seconds=patience_seconds)

    @property
    def peer(self) -> VerifierPeer:
        return self.verifiers.peers[0]

    async def verify(self, sequence: PeerSequence) -> int:
        answer = await self.side.verify(sequence, [5, 6, 7], NOTHING_PROPOSED, RULE, None, new_note())
        return answer.next_token

    async def stalled(self) -> None:
        """Wait until the first verifier has stalled."""
        await until(lambda: self.peer.is_stalled)

    async def close(self) -> None:
        await self.verifiers.close()
        for service in self.services:
            await service.server.grpc.stop(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.start(1)
    yield rig
    await rig.close()


@pytest.fixture
async def two() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.start(2, patience_seconds=LONG_PATIENCE)
    yield rig
    await rig.close()


@pytest.mark.parametrize("is_mute", [False, True], ids=["its thread hangs", "its process is stopped"])
async def test_a_verifier_that_stops_answering_is_left_and_asked_again_when_it_answers(rig: Rig, is_mute: bool) -> None:
    (service,), sequence = rig.services, PeerSequence()
    assert await rig.verify(sequence) == RULE.seed
    service.hangs, service.is_mute = True, is_mute
    verifying = asyncio.create_task(rig.verify(sequence))
    await rig.stalled()
    assert not rig.peer.reachable and not rig.verifiers.reachable and rig.changes[-1:] == [False]
    service.go_on()
    assert await asyncio.wait_for(verifying, 60) == RULE.seed
    assert rig.peer.reachable and rig.changes[-1:] == [True]
    rounds = [item.round for item in service.items if item.handle == sequence.handle]
    assert rounds == [1, 2, 3], "the round is stated again under a new number"
    assert rig.side.retries["VERIFIER_STALLED"] >= 1


@pytest.mark.parametrize(("unfinished_count", "is_left"), [(0, True), (1, False), (None, False)])
async def test_one_that_owes_and_has_nothing_to_do_is_left_at_the_deadline_however_long_the_prompt(
    unfinished_count: int | None, is_left: bool
) -> None:
    """The question or its answer was lost on the way, and the stream stands."""
    rig = Rig()
    await rig.start(1, token_seconds=1.0)
    (service,) = rig.services
    service.hangs, service.unfinished_count = True, unfinished_count
    verifying = asyncio.create_task(rig.verify(PeerSequence()))
    if is_left:
        await rig.stalled()
    else:
        await asyncio.sleep(2 * DEADLINE)
        assert not rig.peer.is_stalled
    service.go_on()
    assert await asyncio.wait_for(verifying, 60) == RULE.seed
    await rig.close()


async def test_all_that_waits_fails_at_once_and_nothing_else_waits_for_a_deadline(rig: Rig) -> None:
    (service,) = rig.services
    service.hangs = True
    started = time.monotonic()
    waiting = [asyncio.create_task(rig.verify(PeerSequence())) for _ in range(8)]
    await rig.stalled()
    assert time.monotonic() - started >= DEADLINE
    count = len(service.unanswered)
    lost = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in lost] == [VerifierLostError] * 8
    assert time.monotonic() - started < 8 * DEADLINE + PATIENCE, "one deadline, not one after another"
    with pytest.raises(VerifierLostError):
        await rig.verify(PeerSequence())
    assert len(service.unanswered) - count < 8, "one probe after another, not one for each that waits"


async def test_a_probe_that_is_lost_on_a_stream_that_stands_is_sent_again(rig: Rig) -> None:
    (service,), sequence = rig.services, PeerSequence()
    service.hangs = True
    verifying = asyncio.create_task(rig.verify(sequence))
    await rig.stalled()
    await until(lambda: len(service.unanswered) == 2)
    service.unanswered.clear()  # what was asked on the way here is never answered
    service.hangs = False
    assert await asyncio.wait_for(verifying, 60) == RULE.seed


async def test_patience_begins_when_the_verifier_goes_away(rig: Rig) -> None:
    """It may have been at a long prompt for longer than that."""
    (service,) = rig.services
    service.hangs = service.steps_go_on = True
    verifying = asyncio.create_task(rig.verify(PeerSequence()))
    await asyncio.sleep(1.5 * PATIENCE)
    service.steps_go_on = False
    await rig.stalled()
    await asyncio.sleep(PATIENCE / 4)
    service.go_on()
    assert await verifying == RULE.seed


async def test_one_that_makes_steps_is_never_left(rig: Rig) -> None:
    (service,) = rig.services
    service.hangs = service.steps_go_on = True
    verifying = asyncio.create_task(rig.verify(PeerSequence()))
    await asyncio.sleep(5 * DEADLINE)
    assert not verifying.done() and not rig.side.retries and rig.changes == []
    service.go_on()
    assert await verifying == RULE.seed
    assert service.stream_count == 1


async def test_one_that_answers_others_is_never_left(rig: Rig) -> None:
    """Though it does not count its steps."""
    (service,) = rig.services
    service.hangs = True
    verifying = asyncio.create_task(rig.verify(PeerSequence()))
    await until(lambda: service.unanswered)
    service.hangs = False
    deadline = time.monotonic() + 5 * DEADLINE
    while time.monotonic() < deadline:
        assert await rig.verify(PeerSequence()) == RULE.seed
        await asyncio.sleep(DEADLINE / 8)
    assert rig.changes == [] and not verifying.done()
    assert await verifying == RULE.seed, "it is silent now, and what it has forgotten is stated again"
    assert rig.changes[:1] == [False]


async def test_one_that_owes_nothing_is_never_left(rig: Rig) -> None:
    """The callers that waited have given up, so nothing shows that the verifier is slow."""
    (service,) = rig.services
    service.hangs = True
    verifying = asyncio.create_task(rig.verify(PeerSequence()))
    await until(lambda: service.unanswered)
    verifying.cancel()
    await asyncio.sleep(5 * DEADLINE)
    assert rig.changes == []
    service.go_on()


async def test_waiting_for_one_that_serves_and_hangs_ends(rig: Rig) -> None:
    (service,) = rig.services
    service.hangs = True
    verifying = asyncio.create_task(rig.verify(PeerSequence()))
    await rig.stalled()
    assert (await rig.peer.wait_until_serving()).vocabulary_size == right_info().vocabulary_size
    service.go_on()
    assert await verifying == RULE.seed


async def test_a_session_moves_at_the_deadline_and_no_other_comes_while_it_hangs(two: Rig) -> None:
    sequences = [PeerSequence() for _ in range(4)]
    await asyncio.gather(*map(two.verify, sequences))
    hanging = two.services[0]
    hanging.hangs = True
    started = time.monotonic()
    assert await asyncio.gather(*map(two.verify, sequences)) == [RULE.seed] * 4
    assert time.monotonic() - started < LONG_PATIENCE
    assert two.verifiers.failover_count == 2 and two.verifiers.reachable
    count = len(hanging.unanswered)
    for _ in range(3):
        await asyncio.sleep(0.6)  # longer than the breaker's first pause
        assert two.verifiers.verifier_of(sequence := PeerSequence()).address == two.verifiers.peers[1].address
        assert await two.verify(sequence) == RULE.seed
    assert all(list(item.tail) == [0] for item, _ in hanging.unanswered[count:]), "probes alone come"
    hanging.go_on()
    await until(lambda: not two.peer.is_stalled)
    assert two.verifiers.verifier_of(PeerSequence()) is two.peer


@pytest.mark.parametrize(
    ("code", "reason", "is_back"),
    [
        (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", False),
        (Code.RESOURCE_EXHAUSTED, "SEQUENCE_LIMIT", True),
        (Code.UNAVAILABLE, "LOADING", False),
    ],
)
async def test_a_refused_probe_shows_that_the_verifier_is_back_unless_it_is_absent_or_its_queue_full(
    rig: Rig, code: Code, reason: str, is_back: bool
) -> None:
    (service,) = rig.services
    service.hangs = True
    verifying = asyncio.create_task(rig.verify(PeerSequence()))
    await until(lambda: service.unanswered)
    service.refusal = PeerError(code, reason, "")
    await until(lambda: rig.changes)
    if is_back:
        await until(lambda: not rig.peer.is_stalled)
    else:
        await until(lambda: service.refusal_count >= 2)  # the answer to the first one has been heard
        assert rig.peer.is_stalled
    service.refusal = None
    service.go_on()
    await until(lambda: not rig.peer.is_stalled)
    await asyncio.gather(verifying, return_exceptions=True)


async def test_probes_whose_answers_were_lost_leave_no_handle_open(rig: Rig) -> None:
    (service,) = rig.services
    service.hangs = True
    verifying = asyncio.create_task(rig.verify(PeerSequence()))

    def probes() -> list[verifier_pb2.VerifyItem]:
        return [item for item, _ in service.unanswered if list(item.tail) == [0]]

    await until(lambda: len(probes()) >= 2)
    opened = {item.handle for item in probes()}
    service.unanswered.clear()
    service.go_on()
    await until(lambda: not rig.peer.is_stalled)
    await asyncio.gather(verifying, return_exceptions=True)
    await until(lambda: {item.handle for item in service.items if item.HasField("close")} >= opened)


async def test_refusals_do_not_hide_that_its_thread_hangs(rig: Rig) -> None:
    """As where so many items wait for it that those to come are refused."""
    (service,) = rig.services
    service.hangs = True
    verifying = asyncio.create_task(rig.verify(PeerSequence()))
    await until(lambda: service.unanswered)
    service.refusal = PeerError(Code.FAILED_PRECONDITION, "NO_TOKEN_TO_CHOOSE", "")
    deadline = time.monotonic() + 20 * DEADLINE
    while not verifying.done():
        assert time.monotonic() < deadline
        with pytest.raises(PeerError) as caught:
            await rig.verify(PeerSequence())
        assert caught.value.reason == "NO_TOKEN_TO_CHOOSE"
        await asyncio.sleep(DEADLINE / 8)
    assert rig.side.retries["VERIFIER_STALLED"] >= 1


async def test_a_process_that_is_killed_while_it_is_stopped_is_found_when_it_is_started_again(rig: Rig) -> None:
    (service,), address = rig.services, rig.peer.address
    service.hangs = True
    verifying = asyncio.create_task(rig.verify(PeerSequence()))
    await rig.stalled()
    await service.server.grpc.stop(0)
    with pytest.raises(VerifierLostError):
        await verifying
    again = Hanging()
    again.server = Server(address, ())
    rig.services[0] = again
    peer = await again.start()
    await peer.close()
    await until(lambda: rig.verifiers.reachable)
    assert await rig.verify(PeerSequence()) == RULE.seed
