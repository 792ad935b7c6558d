"""The verifier service at one address. Wire messages are converted here."""

from __future__ import annotations

import asyncio
import logging
import time

from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.checking.results import RunCheck, VerificationCheck
from orchestrator.peers.delivery import Delivery
from orchestrator.peers.exchange import PeerTiming, Terms, Verification, timing_of
from orchestrator.peers.model_peer import ModelPeer
from orchestrator.peers.progress import LOOK_SHARE, Look, Progress
from orchestrator.peers.sequence import PeerSequence, Position
from orchestrator.peers.stall_watch import StallWatch, VerifierStalledError
from orchestrator.peers.step_curve import StepCurve
from orchestrator.peers.verifier_run import Hinting, Limits, VerifierRun
from orchestrator.speculation.proposal import NOTHING_PROPOSED, Proposal
from slipstream.rpc.connector import PLAINTEXT, Connector
from slipstream.rpc.item_stream import ItemStream
from slipstream.rpc.sampling_wire import distribution_message, logprobs_of
from slipstream.rpc.status import PeerError
from slipstream.rpc.wire import duration
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import model_pb2, verifier_pb2, verifier_pb2_grpc

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Seconds in which a running service reports its load, or `LOOK_SHARE` of the deadline if that is
less."""

_MOST_PARTS = 1024
"""Results that may still come of a run that was given up: it stops after a step, and its results of
some time are on their way."""

_PROBE_TERMS = Terms("", "", 60.0)
"""Terms of a probe: a handle for one token, which belongs to no session."""


class VerifierPeer(ModelPeer[verifier_pb2.VerifyItem, verifier_pb2.VerifyResult]):
    """The verifier service at one address."""

    def __init__(
        self,
        address: str,
        deadline_seconds: float = 10.0,
        connector: Connector = PLAINTEXT,
    ) -> None:
        """The verifier counts as stalled after ``deadline_seconds`` of silence and, as `Progress`
        defines it, the expected time of what it owes."""
        super().__init__("verifier", address, connector)
        self.steps = StepCurve()
        self._probed = PeerSequence()
        """Sequence of all probes while the peer is stalled. A probe whose answer is lost leaves its
        handle open too."""
        self._look_seconds = min(_LOOK_SECONDS, deadline_seconds * LOOK_SHARE)
        self._run_stream = ItemStream[verifier_pb2.RunItem, verifier_pb2.RunResult](
            verifier_pb2_grpc.VerifierServiceStub(self.channel).Run,
            lambda items: verifier_pb2.RunRequest(items=items),
            lambda response: response.results,
            self._lost,
            most_results=_MOST_PARTS,
            on_fault=self._note_fault,
        )
        self._delivery = Delivery()
        self._stalls = StallWatch(
            Progress(deadline_seconds, self.steps.work),
            look=self._look,
            probe=self._probe,
            probe_seconds=deadline_seconds,
            renew=self._renew,
            on_changed=self._stalled,
        )

    @property
    def is_stalled(self) -> bool:
        """True if the verifier has stopped answering: a request to it fails at once."""
        return self._stalls.is_stalled

    @property
    def reachable(self) -> bool:
        """True if the verifier reports that it serves, and answers items."""
        return super().reachable and not self.is_stalled

    def _open_stream(self) -> ItemStream[verifier_pb2.VerifyItem, verifier_pb2.VerifyResult]:
        return ItemStream(
            verifier_pb2_grpc.VerifierServiceStub(self.channel).Verify,
            lambda items: verifier_pb2.VerifyRequest(items=items),
            lambda response: response.results,
            self._lost,
            on_fault=self._note_fault,
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
        """Verify one round, and open the sequence's handle if necessary. PeerError if the item
        failed, the stream was lost, or the verifier has stopped answering or refuses us."""
        self._refuse_unless_usable()
        return await self._ask(sequence, terms, position, proposal, rule, logprobs, traceparent)

    def start_run(
        self,
        sequence: PeerSequence,
        terms: Terms,
        position: Position,
        limits: Limits,
        rule: SamplingRule,
        logprobs: LogprobRequest | None,
        traceparent: str,
        hinting: Hinting = Hinting(),  # noqa: B008
    ) -> VerifierRun:
        """Start a run, and open the sequence's handle if necessary. PeerError if the verifier has
        stopped answering or refuses us."""
        self._refuse_unless_usable()
        assert self.info is not None, "a peer is asked once it has been reached"
        length, handle = position.base_length + len(position.tail), sequence.handle
        item = verifier_pb2.RunItem(
            handle=handle,
            round=sequence.next_round(),
            start=verifier_pb2.StartRun(
                base_length=position.base_length,
                tail=position.tail,
                until_length=limits.until_length,
                granted_length=min(limits.until_length, length + limits.lead),
                rule=self._rule_message(rule),
                top_logprob_count=None if logprobs is None else logprobs.top_count,
                tail_logprobs=logprobs is not None and logprobs.prompt,
                open=None if sequence.is_open else terms.message(),
                traceparent=traceparent,
                takes_ngrams=hinting.takes_ngrams,
                takes_heads=hinting.takes_heads,
                fixed_hint_count=hinting.fixed_count,
                do_not_collect=sequence.is_private,
                longest_hold=None if hinting.longest_hold is None else duration(hinting.longest_hold),
            ),
        )
        check = RunCheck(length, limits.until_length, position.tail, self.info.vocabulary_size, rule, logprobs)
        run = VerifierRun(self, item, check, limits, lambda: sequence.opened(handle))
        self._run_stream.send(item, run)
        return run

    def tell(self, item: verifier_pb2.RunItem) -> None:
        """Send an item about a run that has no result."""
        self._run_stream.tell(item)

    def withdraw(self, run: VerifierRun) -> None:
        """Stop waiting for a run's results."""
        self._run_stream.withdraw(run.item, run)

    def deliver(self, arrived: asyncio.Event) -> None:
        """Wake a turn as soon as there is time for it."""
        self._delivery.put(arrived)

    def owe(self, token_count: int) -> None:
        """Count tokens of a run that the verifier owes."""
        self._stalls.owe(token_count)

    def settle(self, token_count: int) -> None:
        """Count them no more."""
        self._stalls.settle(token_count)

    def record_verification(self) -> None:
        """Record that a part of a run has come."""
        self._stalls.record_verification()

    def record_steps(self, timing: PeerTiming) -> None:
        """Record what the steps of a part took."""
        self.steps.record(timing)

    def note_fault(self, fault: PeerFaultError) -> None:
        """Count a part that no verifier can send."""
        self.faults.note(fault)

    @property
    def reconnect_count(self) -> int:
        """Streams of items that have brought an answer, after the first of each kind."""
        return super().reconnect_count + max(0, self._run_stream.answered_count - 1)

    def _refuse_unless_usable(self) -> None:
        if self.is_stalled:
            raise VerifierStalledError(self.address)
        if (refusal := self._refusal.error) is not None:
            raise PeerError(refusal.code, refusal.reason, str(refusal))

    async def close(self) -> None:
        """Close the stream and the channel, after the items that close handles have arrived."""
        await self._stalls.close()
        await self._run_stream.close()
        await super().close()

    async def _ask(
        self,
        sequence: PeerSequence,
        terms: Terms,
        position: Position,
        proposal: Proposal,
        rule: SamplingRule,
        logprobs: LogprobRequest | None,
        traceparent: str,
    ) -> Verification:
        started = time.monotonic()
        handle = sequence.handle
        stated, rule_message = self._state(sequence, rule)
        item = verifier_pb2.VerifyItem(
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
            do_not_collect=sequence.is_private,
        )
        assert self.info is not None, "a peer is asked once it has been reached"
        check = VerificationCheck(position.tail, proposal.tokens, self.info.vocabulary_size, rule, logprobs)
        with self._stalls.owing(len(position.tail) + len(proposal)):
            result = await self._stream.ask(item)
            round_trip = time.monotonic() - started
            self._check(result, check, round_trip)
        sequence.answered(handle, stated)
        timing = timing_of(result.timing, round_trip)
        self.steps.record(timing)
        return Verification(
            accepted_count=result.accepted_count,
            next_token=result.next_token,
            prefilled_count=result.prefilled_count,
            timing=timing,
            logprobs=tuple(map(logprobs_of, result.logprobs)),
            tail_logprobs=tuple(map(logprobs_of, result.tail_logprobs)),
            margin=result.margin,
        )

    def _check(self, result: verifier_pb2.VerifyResult, check: VerificationCheck, round_trip: float) -> None:
        """Raise PeerError if the item failed, PeerFaultError if the answer is impossible."""
        try:
            if result.HasField("error"):
                raise check.error(result)
            check.check(result, round_trip)
        except PeerFaultError as fault:
            self.faults.note(fault)
            raise

    async def _look(self) -> Look | None:
        """Return the verifier's progress; None if it does not answer."""
        load = await self._load(self._look_seconds)
        return None if load is None else Look(load.step_count, load.unfinished_count)

    async def _probe(self) -> None:
        """Verify one token, all the way through the model. A service whose model thread hangs still
        reports that it serves."""
        await self._ask(self._probed, _PROBE_TERMS, Position(0, (0,)), NOTHING_PROPOSED, SamplingRule(), None, "")

    def _renew(self) -> None:
        for stream in (self._stream, self._run_stream):
            stream.abandon(VerifierStalledError(self.address))

    def _stalled(self, is_stalled: bool) -> None:
        if is_stalled:
            log.warning("the verifier at %s has stopped answering: it gets no requests until it answers", self.address)
            self._renew()
            self._health.doubt()
        else:
            log.info("the verifier at %s answers again", self.address)
            self.close_sequence(self._probed)
            self._probed = PeerSequence()
        self._health.on_changed()
