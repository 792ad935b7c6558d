"""A model service as the orchestrator sees it: the common part of verifiers and drafts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import grpc

from orchestrator.peers.checking.faults import PeerFaultError, PeerFaults
from orchestrator.peers.checking.infos import TokenizerFiles, check_info, check_load
from orchestrator.peers.closings import Closings
from orchestrator.peers.health import PeerHealth
from orchestrator.peers.model_info import ModelInfo, info_of
from orchestrator.peers.refusal import Refusal
from orchestrator.peers.sequence import PeerSequence, StatedRule
from slipstream.agreed import WIRE_VERSION
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.connector import PLAINTEXT, Connector
from slipstream.rpc.item_results import ItemT, ResultT
from slipstream.rpc.item_stream import ItemStream
from slipstream.rpc.parsing import unreadable
from slipstream.rpc.sampling_wire import rule_hash, rule_message
from slipstream.rpc.status import error_of_call
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import model_pb2, model_pb2_grpc, rule_pb2

log = logging.getLogger(__name__)

_STATUS_SECONDS = 1.0
_TOKENIZER_SECONDS = 600.0
_SAY_FIRST_SECONDS, _SAY_AGAIN_SECONDS = 1.0, 5.0


class CorruptTokenizerError(SlipstreamError):
    """A tokenizer file did not arrive whole."""

    reason = Reason.CORRUPT_TOKENIZER


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """Load of a service, as it reports it."""

    running_count: int
    waiting_count: int
    sequence_count: int
    page_count: int
    held_page_count: int
    cached_page_count: int
    step_count: int
    paused_count: int
    sat_out_count: int
    unfinished_count: int | None
    """Items that are not answered yet; None if the service does not count them."""


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A service as it is now; no ``load`` if it has not answered in time."""

    role: str
    address: str
    reachable: bool
    load: PeerLoad | None


class ModelPeer(Generic[ItemT, ResultT]):
    """A model service at one address, and one stream of items to it for all sessions."""

    def __init__(self, role: str, address: str, connector: Connector = PLAINTEXT) -> None:
        self.role = role
        self.address = address
        self.info: ModelInfo | None = None
        self.faults = PeerFaults(f"the {role} at {address}")
        """Faults in what the peer has sent."""
        self._unfit: PeerFaultError | None = None
        """Error that keeps the peer from being used, if its last report of its model is invalid."""
        self.channel = connector.open_peer(address)
        self._model = model_pb2_grpc.ModelServiceStub(self.channel)
        self._health = PeerHealth(self.channel)
        self._interruptions_when_asked = 0
        self._refusal = Refusal(f"the {role} at {address}", self._get_load, lambda: self._health.on_changed())
        self._stream = self._open_stream()
        self._closings: Closings[ItemT, ResultT] = Closings(self._stream)

    def _open_stream(self) -> ItemStream[ItemT, ResultT]:
        """Return the stream of this kind of service. It calls `_lost` when it ends."""
        raise NotImplementedError

    def _closing(self, handle: str, number: int) -> ItemT:
        """Return the item that closes a handle."""
        raise NotImplementedError

    @property
    def reachable(self) -> bool:
        """True if the peer says that it serves, hosts a valid model, and does not refuse us.

        The answer is at most about two seconds old once it has been waited for; False before.
        """
        return self._health.serving and self._refusal.error is None and self._unfit is None

    @property
    def is_starting(self) -> bool:
        """True if the peer is there and does not serve yet."""
        return self._health.answering and not self._health.serving

    @property
    def trouble(self) -> str:
        """Reason that the peer is not reachable, as far as it is known; empty while it is."""
        if self.reachable:
            return ""
        if (error := self._unfit or self._refusal.error) is not None:
            return str(error)
        return "it does not serve yet" if self.is_starting else self._health.trouble

    @property
    def reconnect_count(self) -> int:
        """Streams of items that have brought an answer, after the first."""
        return max(0, self._stream.answered_count - 1)

    def on_reachable_changed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at each change of ``reachable``. It replaces an earlier callback."""
        self._health.on_changed = callback

    async def wait_until_serving(self) -> ModelInfo:
        """Wait until the service is healthy, with a log line every few seconds, and return the
        model that it hosts. PeerError if it has gone again by then, PeerFaultError if its report is
        invalid."""
        pause = _SAY_FIRST_SECONDS
        while not self._health.serving:
            try:
                async with asyncio.timeout(pause):
                    await self._health.wait_until_serving()
            except TimeoutError:
                trouble = f": {self._health.trouble}" if self._health.trouble else ""
                log.info("waiting for the %s service at %s%s", self.role, self.address, trouble)
                pause = _SAY_AGAIN_SECONDS
        self._interruptions_when_asked = self._health.interruption_count
        try:
            self.info = info_of(await self._get_info())
        except PeerFaultError as fault:
            self._turn_unfit(fault)
            raise
        self._turn_unfit(None)
        log.info("the %s service at %s hosts %s", self.role, self.address, self.info.name)
        return self.info

    async def _get_info(self) -> model_pb2.ModelInfo:
        request = model_pb2.GetModelInfoRequest(wire_version=WIRE_VERSION)
        try:
            response = await self._model.GetModelInfo(request, timeout=_SAY_AGAIN_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = error_of_call(failure)
            if error.reason == Reason.PEER_UNAUTHENTICATED:
                self._refusal.doubt()  # and it says so, once
            if error.reason == Reason.WIRE_VERSION_MISMATCH:
                raise PeerFaultError("wire_version", f"must be {WIRE_VERSION}: {error}") from failure
            if (requirement := unreadable(failure)) is not None:
                raise PeerFaultError("message", requirement) from failure
            raise error from failure
        check_info(response.model)
        return response.model

    def _turn_unfit(self, fault: PeerFaultError | None) -> None:
        if fault is not None:
            self.faults.note(fault)
        self._unfit = fault
        self._health.on_changed()

    def _note_fault(self, field: str, requirement: str) -> None:
        """Count a message on the stream of items that is not an answer."""
        self.faults.note(PeerFaultError(field, requirement))

    async def wait_until_back(self) -> None:
        """Wait until the service has gone since it was asked for its model, and is healthy again,
        perhaps with another one. Nothing is logged."""
        await self._health.wait_until_interrupted(self._interruptions_when_asked)
        await self._health.wait_until_serving()

    async def status(self) -> PeerStatus:
        """Ask the peer for its status now."""
        load = await self._load(_STATUS_SECONDS) if self.reachable else None
        return PeerStatus(self.role, self.address, self.reachable, load)

    async def _load(self, timeout: float) -> PeerLoad | None:
        """Return the peer's load; None if it does not answer in time."""
        try:
            answer = await self._get_load(timeout)
        except grpc.aio.AioRpcError:
            log.debug("the %s service at %s does not say how busy it is", self.role, self.address)
            return None
        load = answer.load
        try:
            check_load(load)
        except PeerFaultError as fault:
            self.faults.note(fault)
            return None
        counts = {name: getattr(load, name) for name in PeerLoad.__dataclass_fields__}
        if not load.HasField("unfinished_count"):
            counts["unfinished_count"] = None
        return PeerLoad(**counts)

    async def _get_load(self, timeout: float = _STATUS_SECONDS) -> model_pb2.GetLoadResponse:
        return await self._model.GetLoad(model_pb2.GetLoadRequest(), timeout=timeout)

    def _lost(self) -> None:
        """Check the peer's health: the stream of items has ended by itself."""
        self._health.doubt()
        self._refusal.doubt()

    async def fetch_tokenizer(self) -> dict[str, bytes]:
        """Return the files of the model's tokenizer by name. CorruptTokenizerError if a file's
        sha256 does not match, PeerFaultError if a tokenizer has no such files."""
        files = TokenizerFiles()
        try:
            async for chunk in self._model.GetTokenizer(model_pb2.GetTokenizerRequest(), timeout=_TOKENIZER_SECONDS):
                if not files.take(chunk):
                    raise CorruptTokenizerError(f"{chunk.file_name} from {self.address} did not arrive whole")
            return files.whole
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error

    def _rule_message(self, rule: SamplingRule) -> rule_pb2.SamplingRule:
        assert self.info is not None, "a peer is asked once it has been reached"
        return rule_message(rule, self.info.vocabulary_size)

    def _state(self, sequence: PeerSequence, rule: SamplingRule) -> tuple[StatedRule, rule_pb2.SamplingRule | None]:
        """Return a rule as the sequence's next item names it, and its message if the item has to
        state it."""
        made: list[rule_pb2.SamplingRule] = []  # a rule may be large: one that is new is made a message once

        def hash_of(rule: SamplingRule) -> int:
            made.append(self._rule_message(rule))
            return rule_hash(made[0])

        stated = sequence.state(rule, hash_of)
        if stated.is_told:
            return stated, None
        return stated, made[0] if made else self._rule_message(rule)

    def close_sequence(self, sequence: PeerSequence) -> None:
        """Close a handle without waiting, if it was ever used. If the peer is away, the lease ends
        the handle."""
        if sequence.round:
            self._closings.send(self._closing(sequence.handle, sequence.next_round()))

    async def close(self) -> None:
        """Close the stream and the channel, after the items that close handles have arrived."""
        await self._closings.flush()
        await self._stream.close()
        await self._refusal.close()
        await self._health.close()
        await self.channel.close()
