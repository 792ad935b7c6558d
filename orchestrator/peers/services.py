"""The model services as the orchestrator sees them. Wire types end here."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol

import grpc

from orchestrator.peers.closings import Closings
from orchestrator.peers.health import PeerHealth
from orchestrator.peers.sequence import PeerSequence, Position, StatedRule
from orchestrator.speculation.proposal import Branch, Confidence, Proposal
from slipstream.errors import Code, SlipstreamError
from slipstream.rpc.channel import open_channel
from slipstream.rpc.item_stream import ItemStream, ItemT, ResultT
from slipstream.rpc.sampling_wire import (
    defaults_of,
    distribution_message,
    distribution_of,
    logprobs_of,
    rule_hash,
    rule_message,
)
from slipstream.rpc.status import PeerError, error_of, error_of_call
from slipstream.rpc.wire import duration, seconds
from slipstream.sampling.outcome import LogprobRequest, TokenLogprobs
from slipstream.sampling.rule import SamplingDefaults, SamplingRule
from slipstream.wire.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    rule_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
)

log = logging.getLogger(__name__)

_SAY_FIRST_SECONDS, _SAY_AGAIN_SECONDS = 1.0, 5.0


class CorruptTokenizerError(SlipstreamError):
    """A tokenizer file did not arrive whole."""

    code = Code.DATA_LOSS
    reason = "CORRUPT_TOKENIZER"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model service says of its model; fields as in model.proto."""

    name: str
    architecture: str
    vocabulary_size: int
    tokenizer_fingerprint: str
    context_length: int
    end_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    dtype: str
    device: str
    max_draft_length: int
    weights_fingerprint: str
    step_times: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    """(token count, seconds) of forwards, as the service measured them at its start."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On what a handle is opened: the fingerprints of the tokenizer and, unless empty, of the weights that its tokens come
    from, which the peer compares with its own; and the lease in seconds."""

    tokenizer: str
    weights: str
    lease_seconds: float

    def message(self) -> model_pb2.OpenSequence:
        """For the wire."""
        return model_pb2.OpenSequence(
            tokenizer_fingerprint=self.tokenizer,
            weights_fingerprint=self.weights,
            lease=duration(self.lease_seconds),
        )


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """Seconds of one exchange: the peer's own clock for queue, forward and total, ours for the round trip."""

    queue: float
    forward: float
    total: float
    round_trip: float
    forward_count: int = 1
    step_token_count: int = 0
    prefill: float = 0.0
    """Of total, what went to prompts, other sequences' included."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The verifier's answer to one round."""

    accepted_count: int
    next_token: int
    prefilled_count: int
    timing: PeerTiming
    logprobs: tuple[TokenLogprobs, ...]
    tail_logprobs: tuple[TokenLogprobs, ...]


class ProposeSink(Protocol):
    """Takes what the draft answers to one request."""

    def take(self, branches: list[Branch]) -> None:
        """Branches, likeliest first; more may follow."""

    def finish(self, timing: PeerTiming) -> None:
        """No more follow."""

    def fail(self, error: PeerError) -> None:
        """The item failed or the stream was lost; nothing more follows."""


class ModelPeer(Generic[ItemT, ResultT]):
    """ModelService at one address, and the stream of items to the service beside it: one for all sessions."""

    def __init__(self, role: str, address: str) -> None:
        self.role = role
        self.address = address
        self.info: ModelInfo | None = None
        self.channel = open_channel(address)
        self._model = model_pb2_grpc.ModelServiceStub(self.channel)
        self._health = PeerHealth(self.channel)
        self._stream = self._open_stream()
        self._closings: Closings[ItemT, ResultT] = Closings(self._stream)

    def _open_stream(self) -> ItemStream[ItemT, ResultT]:
        """The stream of this kind of service, which doubts the peer's health when it is lost."""
        raise NotImplementedError

    def _closing(self, handle: str, number: int) -> ItemT:
        """The item that closes a handle."""
        raise NotImplementedError

    @property
    def reachable(self) -> bool:
        """Whether the peer says that it serves: at most about two seconds old once it has been waited for; False before."""
        return self._health.serving

    @property
    def is_starting(self) -> bool:
        """Whether the peer is there and does not serve yet."""
        return self._health.answering and not self._health.serving

    def on_reachable_changed(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called at each change of ``reachable``; it takes the place of an earlier one."""
        self._health.on_changed = callback

    async def wait_until_serving(self) -> ModelInfo:
        """Wait for the service to be healthy, saying every few seconds for what; then ask what it hosts."""
        pause = _SAY_FIRST_SECONDS
        while not self.reachable:
            try:
                async with asyncio.timeout(pause):
                    await self._health.wait_until_serving()
            except TimeoutError:
                log.info("waiting for the %s service at %s", self.role, self.address)
                pause = _SAY_AGAIN_SECONDS
        try:
            response = await self._model.GetModelInfo(model_pb2.GetModelInfoRequest(), timeout=_SAY_AGAIN_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error
        self.info = _info_of(response.model)
        log.info("the %s service at %s hosts %s", self.role, self.address, self.info.name)
        return self.info

    async def fetch_tokenizer(self) -> dict[str, bytes]:
        """The files of the model's tokenizer, by name. CorruptTokenizerError if a file's sha256 does not fit."""
        files: dict[str, bytearray] = {}
        try:
            async for chunk in self._model.GetTokenizer(model_pb2.GetTokenizerRequest()):
                data = files.setdefault(chunk.file_name, bytearray())
                data += chunk.data
                if chunk.HasField("sha256") and hashlib.sha256(data).hexdigest() != chunk.sha256:
                    raise CorruptTokenizerError(f"{chunk.file_name} from {self.address} did not arrive whole")
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error
        return {name: bytes(data) for name, data in files.items()}

    def _rule_message(self, rule: SamplingRule) -> rule_pb2.SamplingRule:
        assert self.info is not None, "a peer is asked once it has been reached"
        return rule_message(rule, self.info.vocabulary_size)

    def _state(self, sequence: PeerSequence, rule: SamplingRule) -> tuple[StatedRule, rule_pb2.SamplingRule | None]:
        """A rule as the sequence's next item names it, and its message if the item has to state it."""
        made: list[rule_pb2.SamplingRule] = []  # a rule may be large: one that is new is made a message once

        def hash_of(rule: SamplingRule) -> int:
            made.append(self._rule_message(rule))
            return rule_hash(made[0])

        stated = sequence.state(rule, hash_of)
        if stated.is_told:
            return stated, None
        return stated, made[0] if made else self._rule_message(rule)

    def close_sequence(self, sequence: PeerSequence) -> None:
        """Give a handle back without waiting, if it was ever used; if the peer is away its lease ends on its own."""
        if sequence.round:
            self._closings.send(self._closing(sequence.handle, sequence.next_round()))

    async def close(self) -> None:
        """Once the handles given back have arrived, end the stream and close the channel."""
        await self._closings.flush()
        await self._stream.close()
        await self._health.close()
        await self.channel.close()


class VerifierPeer(ModelPeer[verifier_pb2.VerifyItem, verifier_pb2.VerifyResult]):
    """The verifier service at one address."""

    def __init__(self, address: str) -> None:
        super().__init__("verifier", address)

    def _open_stream(self) -> ItemStream[verifier_pb2.VerifyItem, verifier_pb2.VerifyResult]:
        return ItemStream(
            verifier_pb2_grpc.VerifierServiceStub(self.channel).Verify,
            lambda items: verifier_pb2.VerifyRequest(items=items),
            lambda response: response.results,
            self._health.doubt,
        )

    def _closing(self, handle: str, number: int) -> verifier_pb2.VerifyItem:
        return verifier_pb2.VerifyItem(handle=handle, round=number, close=model_pb2.CloseSequence())

    async def verify(
        self,
        sequence: PeerSequence,
        terms: Terms,
        position: Position,
        proposal: Proposal,
        rule: SamplingRule,
        logprobs: LogprobRequest | None,
        traceparent: str,
    ) -> Verification:
        """One round, which opens the sequence's handle if need be. PeerError if the item failed or the stream was lost."""
        started = time.monotonic()
        handle = sequence.handle
        stated, rule_message = self._state(sequence, rule)
        result = await self._stream.ask(
            verifier_pb2.VerifyItem(
                handle=handle,
                round=sequence.next_round(),
                open=None if sequence.is_open else terms.message(),
                base_length=position.base_length,
                tail=position.tail,
                proposal=proposal.tokens,
                distributions=map(distribution_message, proposal.distributions),
                rule_hash=stated.hash,
                rule=rule_message,
                top_logprob_count=None if logprobs is None else logprobs.top_count,
                tail_logprobs=logprobs is not None and logprobs.prompt,
                traceparent=traceparent,
            )
        )
        if result.HasField("error"):
            raise error_of(result.error)
        sequence.answered(handle, stated)
        timing = _timing_of(result.timing, time.monotonic() - started)
        return Verification(
            accepted_count=result.accepted_count,
            next_token=result.next_token,
            prefilled_count=result.prefilled_count,
            timing=timing,
            logprobs=tuple(map(logprobs_of, result.logprobs)),
            tail_logprobs=tuple(map(logprobs_of, result.tail_logprobs)),
        )


class DraftPeer(ModelPeer[draft_pb2.ProposeItem, draft_pb2.ProposeResult]):
    """The draft service at one address."""

    def __init__(self, address: str) -> None:
        super().__init__("draft", address)

    def _open_stream(self) -> ItemStream[draft_pb2.ProposeItem, draft_pb2.ProposeResult]:
        return ItemStream(
            draft_pb2_grpc.DraftServiceStub(self.channel).Propose,
            lambda items: draft_pb2.ProposeRequest(items=items),
            lambda response: response.results,
            self._health.doubt,
        )

    def _closing(self, handle: str, number: int) -> draft_pb2.ProposeItem:
        return draft_pb2.ProposeItem(handle=handle, round=number, close=model_pb2.CloseSequence())

    def propose(
        self,
        sequence: PeerSequence,
        terms: Terms,
        position: Position,
        in_flight: Sequence[int],
        draft_length: int,
        branch_count: int,
        rule: SamplingRule,
        traceparent: str,
        sink: ProposeSink,
    ) -> Callable[[], None]:
        """Ask without waiting: for a plain proposal, or with something in flight for up to ``branch_count`` branches.

        Returns what withdraws ``sink``, which then hears nothing more.
        """
        stated, rule_message = self._state(sequence, rule)
        item = draft_pb2.ProposeItem(
            handle=sequence.handle,
            round=sequence.next_round(),
            open=None if sequence.is_open else terms.message(),
            base_length=position.base_length,
            tail=position.tail,
            in_flight=in_flight,
            draft_length=draft_length,
            max_branch_count=branch_count,
            rule_hash=stated.hash,
            rule=rule_message,
            traceparent=traceparent,
        )
        results = _ProposeResults(sink, sequence, stated)
        self._stream.send(item, results)
        return partial(self._stream.withdraw, item, results)


class _ProposeResults:
    """A request's results on the wire, for its sink."""

    def __init__(self, sink: ProposeSink, sequence: PeerSequence, stated: StatedRule) -> None:
        self._sink = sink
        self._sequence = sequence
        self._handle = sequence.handle
        self._stated = stated
        self._sent = time.monotonic()

    def take(self, result: draft_pb2.ProposeResult) -> bool:
        if result.HasField("error"):
            self._sink.fail(error_of(result.error))
            return True
        self._sequence.answered(self._handle, self._stated)
        if result.branches:
            self._sink.take([_branch_of(branch) for branch in result.branches])
        if result.final:
            self._sink.finish(_timing_of(result.timing, time.monotonic() - self._sent))
        return result.final

    def lose(self, error: PeerError) -> None:
        self._sink.fail(error)


def _branch_of(message: draft_pb2.Branch) -> Branch:
    proposal = Proposal(
        tuple(message.tokens),
        tuple(map(distribution_of, message.distributions)),
        tuple(map(Confidence, message.logprobs, message.margins)),
    )
    next_token = message.next_token if message.HasField("next_token") else None
    return Branch(message.accepted_count, next_token, proposal)


def _timing_of(message: model_pb2.ItemTiming, round_trip: float) -> PeerTiming:
    return PeerTiming(
        seconds(message.queue),
        seconds(message.forward),
        seconds(message.total),
        round_trip,
        message.forward_count,
        message.step_token_count,
        seconds(message.prefill),
    )


def _info_of(message: model_pb2.ModelInfo) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        architecture=message.architecture,
        vocabulary_size=message.vocabulary_size,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        context_length=message.context_length,
        end_token_ids=tuple(message.end_token_ids),
        sampling_defaults=defaults_of(message.sampling_defaults),
        dtype=message.dtype,
        device=message.device,
        max_draft_length=message.max_draft_length,
        weights_fingerprint=message.weights_fingerprint,
        step_times=tuple((point.token_count, seconds(point.time)) for point in message.step_times),
    )
