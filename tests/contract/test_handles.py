"""Handles over a real socket: each belongs to one peer and is freed when that peer has gone. No
peer can keep another from opening one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from draft_service.proposer import ProposeJob
from draft_service.service import DraftService, longest_that_fits
from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.exchange import Terms
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.sequence import PeerSequence, Position
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.speculation.proposal import NOTHING_PROPOSED
from slipstream.agreed import MAX_ANSWER_BYTES, PEER_KEY
from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings
from slipstream.engine.engine import Engine
from slipstream.engine.host import EngineHost, HostLimits
from slipstream.engine.schedule import BatchLimits
from slipstream.hosting.handles import Handles
from slipstream.hosting.service_telemetry import ServiceTelemetry
from slipstream.rpc.channel import PEER_METADATA, SERVER_OPTIONS, open_channel
from slipstream.rpc.sampling_wire import rule_hash, rule_message
from slipstream.sampling.rule import Acceptance, SamplingDefaults, SamplingRule
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc, model_pb2, rule_pb2, verifier_pb2, verifier_pb2_grpc
from tests.clock import Clock
from verifier_service.service import VerifierService
from verifier_service.verifier import VerifyJob

INFO = ModelInfo("m", "A", 259, "", 4096, (), SamplingDefaults(), "float32", "cpu", 32, "", 2)
TERMS = Terms("", "", 600.0)
RULE = SamplingRule()
RATIO = SamplingRule(temperature=1.0, seed=7, acceptance=Acceptance.RATIO, proposal_top_k=4)
OURS, THEIRS = "1" * 32, "2" * 32
GRACE = 30.0
_SWEEP_SECONDS = 0.02


class Services:
    """A verifier and a draft as their processes run them, behind one port."""

    def __init__(self, limits: HostLimits) -> None:
        self._limits = limits
        self.clock = Clock()
        """How long peers have been gone is told by it."""
        self.metadata: list[dict[str, Any]] = []
        """Of each stream."""

    async def start(
        self,
        vocabulary: int = 259,
        max_draft_length: int = 8,
        load_draft: Callable[[], Engine] | None = None,
        draft_weights: str = "",
        **draft_terms: Any,
    ) -> None:
        def load() -> Engine:
            return Engine(ArithmeticBackend(ArithmeticSettings(ends=0, vocabulary=vocabulary)), kv_memory_mib=1)

        self.verifier: EngineHost[VerifyJob] = EngineHost(load, BatchLimits(), self._limits)
        self.draft: EngineHost[ProposeJob] = EngineHost(load_draft or load, BatchLimits(), self._limits)
        for host in (self.verifier, self.draft):
            host.owners._clock = self.clock
            await host.start()
        self.server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=(_Noting(self.metadata),))
        self.draining = asyncio.Event()
        terms: dict[str, Any] = {"max_draft_length": max_draft_length, "draining": self.draining}
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(
            VerifierService(self.verifier, Handles(self.verifier, model_pb2.ModelInfo()), ServiceTelemetry(), **terms),
            self.server,
        )
        draft_pb2_grpc.add_DraftServiceServicer_to_server(
            DraftService(
                self.draft,
                Handles(self.draft, model_pb2.ModelInfo(weights_fingerprint=draft_weights)),
                ServiceTelemetry(),
                **terms,
                **draft_terms,
            ),
            self.server,
        )
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        self.channel = open_channel(self.address)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(0)
        await self.verifier.stop()
        await self.draft.stop()

    def peer(self, key: str | None) -> Peer:
        return Peer(self.channel, () if key is None else ((PEER_KEY, key),))

    async def pass_seconds(self, seconds: float) -> None:
        """Time goes by, and the hosts see what has ended meanwhile."""
        self.clock.now += seconds
        await asyncio.sleep(5 * _SWEEP_SECONDS)

    async def held(self, count: int) -> None:
        """Let time go by until so many pages are held."""
        for _ in range(100):
            if self.verifier.load.held_page_count == count:
                return
            await self.pass_seconds(GRACE)
        assert self.verifier.load.held_page_count == count


class _Noting(grpc.aio.ServerInterceptor):
    def __init__(self, metadata: list[dict[str, Any]]) -> None:
        self._metadata = metadata

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        self._metadata.append(dict(handler_call_details.invocation_metadata))
        return await continuation(handler_call_details)


class Peer:
    """Asks one item after another, each on a stream of its own unless one is kept."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]]) -> None:
        self._verifier = verifier_pb2_grpc.VerifierServiceStub(channel)
        self._draft = draft_pb2_grpc.DraftServiceStub(channel)
        self._metadata = tuple(metadata)

    async def verify(self, handle: str, number: int, tail: Sequence[int] = (), **fields: Any) -> Any:
        item = verifier_pb2.VerifyItem(handle=handle, round=number, tail=tail, **fields)
        async with self.stream() as ask:
            return await ask(item)

    async def propose(self, handle: str, number: int, tail: Sequence[int], **fields: Any) -> Any:
        item = draft_pb2.ProposeItem(handle=handle, round=number, tail=tail, **fields)
        call = self._draft.Propose(iter([draft_pb2.ProposeRequest(items=[item])]), metadata=self._metadata)
        return [result async for response in call for result in response.results]

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Any]:
        call = self._verifier.Verify(metadata=self._metadata)

        async def ask(item: verifier_pb2.VerifyItem) -> verifier_pb2.VerifyResult:
            await call.write(verifier_pb2.VerifyRequest(items=[item]))
            response = await call.read()
            assert isinstance(response, verifier_pb2.VerifyResponse)
            return response.results[0]

        try:
            yield ask
        finally:
            call.cancel()


@pytest.fixture
async def wide_services() -> AsyncIterator[Services]:
    """With a vocabulary in which a distribution has as many tokens as it may, and long
    proposals."""
    services = Services(HostLimits(max_sequence_count=80, grace_seconds=GRACE, sweep_seconds=_SWEEP_SECONDS))
    await services.start(vocabulary=5000, max_draft_length=1000)
    yield services
    await services.stop()


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    limits = HostLimits(max_sequence_count=8, grace_seconds=GRACE, sweep_seconds=_SWEEP_SECONDS)
    services = Services(limits)
    await services.start()
    yield services
    await services.stop()


def stated(rule: SamplingRule = RULE, vocabulary: int = 259) -> dict[str, Any]:
    message: rule_pb2.SamplingRule = rule_message(rule, vocabulary)
    return {"rule": message, "rule_hash": rule_hash(message)}


def opening(rule: SamplingRule = RULE, vocabulary: int = 259) -> dict[str, Any]:
    return {"open": model_pb2.OpenSequence(), **stated(rule, vocabulary)}


CLOSE = {"close": model_pb2.CloseSequence()}


def new_handle() -> str:
    return secrets.token_hex(16)


def reason_of(result: Any) -> str:
    info = error_details_pb2.ErrorInfo()
    if result.HasField("error"):
        result.error.details[0].Unpack(info)
    return str(info.reason)


@pytest.mark.parametrize("key", [THEIRS, None, OURS[1:], OURS + "1", ""])
async def test_another_peers_handle_is_unknown(services: Services, key: str | None) -> None:
    ours, theirs, handle = services.peer(OURS), services.peer(key), new_handle()
    async with ours.stream(), theirs.stream():  # so that neither has gone meanwhile
        unknown = [await theirs.verify(handle, number, [5, 6], **stated()) for number in (1, 2)]
        assert reason_of(unknown[0]) == "UNKNOWN_HANDLE"
        first = await ours.verify(handle, 1, [5, 6], **opening())
        seen = [await theirs.verify(handle, number, [5, 6], **stated()) for number in (1, 2)]
        assert seen == unknown, "not the stored answer, and no word more"
        closed = await theirs.verify(handle, 3, **CLOSE)
        assert closed == verifier_pb2.VerifyResult(handle=handle, round=3), "as closing an unknown handle is"
        assert await ours.verify(handle, 1, [5, 6], **stated()) == first, "nothing has happened to it"
        assert reason_of(await ours.verify(handle, 2, [7], base_length=2, **stated())) == ""


async def test_peers_may_have_handles_of_one_name_and_each_has_its_own(services: Services) -> None:
    ours, theirs, handle = services.peer(OURS), services.peer(THEIRS), new_handle()
    async with ours.stream(), theirs.stream():
        await theirs.verify(handle, 9, **CLOSE)  # which says for ours nothing
        first = await ours.verify(handle, 1, [5, 6], **opening())
        assert reason_of(await theirs.verify(handle, 1, [5, 6], **opening())) == "UNKNOWN_HANDLE", (
            "it has closed its own"
        )
        other = new_handle()
        await ours.verify(other, 1, [5, 6], **opening())
        second = await theirs.verify(other, 1, [90, 91, 92], **opening())
        assert second.next_token != first.next_token
        assert reason_of(await theirs.verify(other, 2, [9], base_length=3, **stated())) == ""
        assert reason_of(await ours.verify(other, 2, [9], base_length=3, **stated())) == "SEQUENCE_TOO_SHORT"


async def test_a_rule_that_one_peer_has_stated_another_cannot_name(services: Services) -> None:
    ours, theirs, handle = services.peer(OURS), services.peer(THEIRS), new_handle()
    number = stated()["rule_hash"]
    async with ours.stream(), theirs.stream():
        await ours.verify(handle, 1, [5, 6], **opening())
        refused = await theirs.verify(handle, 1, [5, 6], open=model_pb2.OpenSequence(), rule_hash=number)
        assert reason_of(refused) == "UNKNOWN_RULE"


async def test_no_handles_name_is_so_long_that_it_reaches_into_another_peers(services: Services) -> None:
    """On the host a handle has its peer's hash behind it: one that ends in such a hash is still of
    its own peer."""
    ours, theirs, handle = services.peer(OURS), services.peer(THEIRS), "x" * 16
    async with ours.stream(), theirs.stream():
        await ours.verify(handle, 1, [5, 6], **opening())
        (name,) = services.verifier._sequences
        assert OURS not in name, "a log may show it"
        refused = await theirs.verify(name, 1, [5, 6], **stated())
        assert reason_of(refused) == "UNKNOWN_HANDLE"
        for overlong in ("y" * 65, "y" * 100_000):
            assert reason_of(await theirs.verify(overlong, 1, **CLOSE)) == ""
        assert not services.verifier._closed, "what can never be opened needs no remembering"


@pytest.mark.parametrize(
    "changes", [{"tail": [5, 7]}, {"base_length": 1}, {"proposal": [5]}, {"top_logprob_count": 2}, stated(RATIO)]
)
async def test_a_round_that_comes_again_with_other_content_does_not_get_the_answer_of_the_first(
    services: Services, changes: dict[str, Any]
) -> None:
    peer, handle = services.peer(OURS), new_handle()
    asked: dict[str, Any] = {"tail": [5, 6], **stated()}
    async with peer.stream():
        first = await peer.verify(handle, 1, **{**asked, **opening()})
        steps = services.verifier.load.step_count
        assert await peer.verify(handle, 1, **asked) == first
        assert await peer.verify(handle, 1, traceparent="another", **asked) == first, "who asks is no content"
        assert reason_of(await peer.verify(handle, 1, **{**asked, **changes})) == "ROUND_CONFLICT"
        assert await peer.verify(handle, 1, **asked) == first
        assert services.verifier.load.step_count == steps


async def test_a_proposal_tested_by_ratios_is_other_content_with_other_distributions(services: Services) -> None:
    peer, handle = services.peer(OURS), new_handle()

    def fields(probability: float) -> dict[str, Any]:
        drawn = rule_pb2.TokenDistribution(token_ids=[5, 6], probabilities=[probability, 1 - probability])
        return {"tail": [5, 6], "proposal": [5], "distributions": [drawn], **opening(RATIO)}

    async with peer.stream():
        first = await peer.verify(handle, 1, **fields(0.5))
        assert reason_of(first) == ""
        assert await peer.verify(handle, 1, **fields(0.5)) == first
        assert reason_of(await peer.verify(handle, 1, **fields(0.25))) == "ROUND_CONFLICT"


@pytest.mark.parametrize("changes", [{"tail": [5, 7]}, {"draft_length": 3}])
async def test_a_drafts_round_too(services: Services, changes: dict[str, Any]) -> None:
    peer, handle = services.peer(OURS), new_handle()
    asked: dict[str, Any] = {"tail": [5, 6], "draft_length": 4, **opening()}
    async with peer.stream():
        await peer.propose(handle, 1, **asked)
        (again,) = await peer.propose(handle, 1, **asked)
        assert len(again.tokens) == 4
        (refused,) = await peer.propose(handle, 1, **{**asked, **changes})
        assert reason_of(refused) == "ROUND_CONFLICT"
        other = services.peer(THEIRS)
        (unknown,) = await other.propose(handle, 1, **{**asked, "open": None})
        assert reason_of(unknown) == "UNKNOWN_HANDLE"


WIDE = SamplingRule(temperature=1.0, seed=7, acceptance=Acceptance.RATIO, proposal_top_k=1024)


async def test_a_proposal_is_never_longer_than_a_message_holds(wide_services: Services) -> None:
    peer, handle = wide_services.peer(OURS), new_handle()
    async with peer.stream():
        (result,) = await peer.propose(handle, 1, [5, 6], draft_length=700, **opening(WIDE, 5000))
    assert reason_of(result) == ""
    assert len(result.tokens) == longest_that_fits(WIDE)
    assert MAX_ANSWER_BYTES / 2 < result.ByteSize() < MAX_ANSWER_BYTES


async def test_the_handles_of_a_peer_that_has_gone_come_back_after_the_grace(services: Services) -> None:
    ours, theirs, handle = services.peer(OURS), services.peer(THEIRS), new_handle()
    async with theirs.stream() as ask:
        await ask(verifier_pb2.VerifyItem(handle=handle, round=1, tail=[5] * 40, **opening()))
        async with ours.stream() as ask_ours:
            for _ in range(2):
                await ask_ours(verifier_pb2.VerifyItem(handle=new_handle(), round=1, tail=[6] * 40, **opening()))
            await services.pass_seconds(2 * GRACE)
            assert services.verifier.load.held_page_count == 7, "both peers are there"
        await services.held(3)
        assert services.verifier.load.sequence_count == 1
        assert services.verifier.load.cached_page_count == 2, "what others may share stays, whose it was is no matter"
        again = await ask(verifier_pb2.VerifyItem(handle=handle, round=2, tail=[7], base_length=40, **stated()))
        assert reason_of(again) == ""
    await services.held(0)


async def test_a_peer_that_comes_back_in_time_finds_its_handles_and_answers(services: Services) -> None:
    peer, handle = services.peer(OURS), new_handle()
    first = await peer.verify(handle, 1, [5, 6], **opening())
    for _ in range(4):
        await services.pass_seconds(GRACE - 1)
        assert await peer.verify(handle, 1, [5, 6], **stated()) == first


async def test_a_stream_that_the_peer_cuts_in_mid_answer_is_told_as_gone_too(services: Services) -> None:
    peer = services.peer(OURS)
    for _ in range(3):
        async with peer.stream() as ask:
            asking = asyncio.create_task(
                ask(verifier_pb2.VerifyItem(handle=new_handle(), round=1, tail=[5] * 2000, **opening()))
            )
            for _ in range(10_000):
                if services.verifier.load.held_page_count:
                    break
                await asyncio.sleep(0.001)
            asking.cancel()
    await services.held(0)
    assert len(services.verifier.owners) == 0


async def test_however_many_handles_a_peer_opens_another_can_open_one_and_keep_it(services: Services) -> None:
    flood, ours = services.peer(THEIRS), services.peer(OURS)
    async with AsyncExitStack() as streams:
        ask, kept = await streams.enter_async_context(ours.stream()), new_handle()
        assert reason_of(await ask(verifier_pb2.VerifyItem(handle=kept, round=1, tail=[5, 6], **opening()))) == ""
        # Second: where both hold as many, the peer that came first would be found first.
        ask_flood = await streams.enter_async_context(flood.stream())
        nothing_named = {"open": model_pb2.OpenSequence()}
        for number in range(40):
            fields = nothing_named if number < 20 else {"tail": [number], **opening()}
            await ask_flood(verifier_pb2.VerifyItem(handle=new_handle(), round=1, **fields))
        assert services.verifier.load.sequence_count <= 8
        handles = [new_handle() for _ in range(3)]
        for handle in handles:
            result = await ask(verifier_pb2.VerifyItem(handle=handle, round=1, tail=[5, 6], **opening()))
            assert reason_of(result) == ""
            for _ in range(10):
                await ask_flood(verifier_pb2.VerifyItem(handle=new_handle(), round=1, tail=[9], **opening()))
        for handle in (kept, *handles):
            result = await ask(verifier_pb2.VerifyItem(handle=handle, round=2, tail=[7], base_length=2, **stated()))
            assert reason_of(result) == "", "four of eight are its share"


async def test_while_all_handles_are_at_work_one_more_is_refused(services: Services) -> None:
    peer = services.peer(OURS)
    request = verifier_pb2.VerifyRequest(
        items=[verifier_pb2.VerifyItem(handle=new_handle(), round=1, tail=[5, 6], **opening()) for _ in range(9)]
    )
    stub = verifier_pb2_grpc.VerifierServiceStub(services.channel)
    reasons = [reason_of(each) async for response in stub.Verify(iter([request])) for each in response.results]
    assert sorted(reasons) == [*[""] * 8, "SEQUENCE_LIMIT"]
    assert reason_of(await peer.verify(new_handle(), 1, [5, 6], **opening())) == ""


async def test_an_orchestrators_streams_all_have_the_key_of_their_process(services: Services) -> None:
    verifier, draft = VerifierPeer(services.address), DraftPeer(services.address)
    verifier.info = draft.info = INFO
    sequence, terms = PeerSequence(), TERMS
    for number in range(2):  # the second on a stream of its own
        await verifier.verify(sequence, terms, Position(0, [5, 6]), NOTHING_PROPOSED, RULE, None, "")
        run = verifier._stream._run
        assert run is not None
        if not number:
            run.cancel()
            await asyncio.wait([run])
    listening = _Listening()
    draft.propose(PeerSequence(), terms, Position(0, [5, 6]), 4, RULE, "", listening)
    await asyncio.wait_for(listening.finished.wait(), 60)
    await verifier.close()
    await draft.close()
    keys = [metadata[PEER_KEY] for metadata in services.metadata if PEER_KEY in metadata]
    assert keys == [PEER_METADATA[0][1]] * 3
    assert len(bytes.fromhex(keys[0])) == 16
    assert all(len(bytes.fromhex(PeerSequence().handle)) >= 16 for _ in range(3))


class _Listening:
    def __init__(self) -> None:
        self.finished = asyncio.Event()

    def finish(self, proposal: Any, timing: Any) -> None:
        self.finished.set()

    def fail(self, error: Any) -> None:
        raise AssertionError(error)


TOO_LONG = [-1] * 8193
"""More than the context, and no token of it looked at: it would be refused for what it is."""


async def test_a_tail_that_no_context_holds_is_refused_by_its_length(services: Services) -> None:
    peer, handle = services.peer(OURS), new_handle()
    async with peer.stream():
        assert reason_of(await peer.verify(handle, 1, TOO_LONG, **opening())) == "CONTEXT_EXCEEDED"
        (refused,) = await peer.propose(handle, 1, tail=TOO_LONG, draft_length=4, **opening())
        assert reason_of(refused) == "CONTEXT_EXCEEDED"
    assert services.verifier.load.sequence_count == 0 == services.draft.load.sequence_count


@pytest.mark.parametrize("name", ["allowed_token_ids", "banned_token_ids", "logit_bias", "end_token_ids"])
async def test_a_rule_with_lists_of_millions_is_refused_by_their_lengths(services: Services, name: str) -> None:
    peer, handle, rule = services.peer(OURS), new_handle(), rule_message(RULE, 2**31)
    if name == "end_token_ids":
        rule.end_token_ids.extend(range(8193))
    elif name == "logit_bias":
        rule.sampling.logit_bias.update(dict.fromkeys(range(8193), 1.0))
    else:
        getattr(rule.sampling, name).extend(range(8193))
    async with peer.stream():
        fields = {"open": model_pb2.OpenSequence(), "rule": rule, "rule_hash": rule_hash(rule)}
        refused = await peer.verify(handle, 1, [5, 6], **fields)
    assert reason_of(refused) == "INVALID_FIELDS" and name in refused.error.message


async def test_a_distribution_over_more_than_a_draft_says_is_refused(services: Services) -> None:
    peer, handle = services.peer(OURS), new_handle()
    drawn = rule_pb2.TokenDistribution(token_ids=range(1025), probabilities=[0.1] * 1025)
    async with peer.stream():
        refused = await peer.verify(handle, 1, [5, 6], proposal=[5], distributions=[drawn], **opening(RATIO))
    assert reason_of(refused) == "INVALID_FIELDS" and "at most 1024" in refused.error.message
