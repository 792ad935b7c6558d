"""The draft service at one address. Wire messages are converted here."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from orchestrator.peers.checking.errors import checked_error
from orchestrator.peers.checking.faults import PeerFaultError, PeerFaults
from orchestrator.peers.checking.hints import HintCheck
from orchestrator.peers.checking.results import ProposalCheck
from orchestrator.peers.draft_run import DraftRun, GuessTerms, HintListener
from orchestrator.peers.exchange import PeerTiming, Terms, timing_of
from orchestrator.peers.model_peer import ModelPeer
from orchestrator.peers.sequence import PeerSequence, Position, StatedRule
from orchestrator.speculation.proposal import Proposal
from slipstream.rpc.connector import PLAINTEXT, Connector
from slipstream.rpc.item_stream import ItemStream
from slipstream.rpc.sampling_wire import distribution_of
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc, model_pb2

_MOST_RESULTS = 1024
"""Results that may still come of guessing that was given up: it stops after a step, and its results
of some time are on their way."""


class ProposeSink(Protocol):
    """The receiver of the draft's answers to one request."""

    def finish(self, proposal: Proposal, timing: PeerTiming) -> None:
        """Receive the proposal. Nothing follows."""

    def fail(self, error: PeerError) -> None:
        """Receive the error of a failed item or a lost stream. Nothing follows."""


class DraftPeer(ModelPeer[draft_pb2.ProposeItem, draft_pb2.ProposeResult]):
    """The draft service at one address."""

    def __init__(self, address: str, connector: Connector = PLAINTEXT) -> None:
        super().__init__("draft", address, connector)
        self._draft_stream = ItemStream[draft_pb2.DraftItem, draft_pb2.DraftResult](
            draft_pb2_grpc.DraftServiceStub(self.channel).Draft,
            lambda items: draft_pb2.DraftRequest(items=items),
            lambda response: response.results,
            self._lost,
            is_last=lambda result: result.final or result.HasField("error"),
            most_results=_MOST_RESULTS,
            on_fault=self._note_fault,
        )

    def _open_stream(self) -> ItemStream[draft_pb2.ProposeItem, draft_pb2.ProposeResult]:
        return ItemStream(
            draft_pb2_grpc.DraftServiceStub(self.channel).Propose,
            lambda items: draft_pb2.ProposeRequest(items=items),
            lambda response: response.results,
            self._lost,
            on_fault=self._note_fault,
        )

    def _closing(self, handle: str, number: int) -> draft_pb2.ProposeItem:
        return draft_pb2.ProposeItem(handle=handle, round=number, close=model_pb2.CloseSequence())

    def propose(
        self,
        sequence: PeerSequence,
        terms: Terms,
        position: Position,
        draft_length: int,
        rule: SamplingRule,
        traceparent: str,
        sink: ProposeSink,
    ) -> Callable[[], None]:
        """Send a request for a proposal without waiting.

        Returns a function that withdraws ``sink``, which then receives nothing more.
        """
        stated, rule_message = self._state(sequence, rule)
        item = draft_pb2.ProposeItem(
            handle=sequence.handle,
            round=sequence.next_round(),
            open=None if sequence.is_open else terms.message(),
            base_length=position.base_length,
            tail=position.tail,
            draft_length=draft_length,
            rule_hash=stated.hash,
            rule=rule_message,
            traceparent=traceparent,
        )
        assert self.info is not None, "a peer is asked once it has been reached"
        check = ProposalCheck(draft_length, self.info.vocabulary_size, rule)
        results = _ProposeResults(sink, sequence, stated, check, self.faults)
        self._stream.send(item, results)
        return partial(self._stream.withdraw, item, results)

    def start_run(
        self,
        sequence: PeerSequence,
        terms: Terms,
        position: Position,
        guess: GuessTerms,
        rule: SamplingRule,
        traceparent: str,
        listener: HintListener,
    ) -> DraftRun:
        """Let the draft guess on, and open the sequence's handle if necessary. ``listener`` gets
        its hints."""
        assert self.info is not None, "a peer is asked once it has been reached"
        handle = sequence.handle
        item = draft_pb2.DraftItem(
            handle=handle,
            round=sequence.next_round(),
            start=draft_pb2.StartDraft(
                base_length=position.base_length,
                tail=position.tail,
                until_length=guess.until_length,
                rule=self._rule_message(rule),
                least_length=guess.least_length,
                price=guess.price,
                open=None if sequence.is_open else terms.message(),
                traceparent=traceparent,
            ),
        )
        length = position.base_length + len(position.tail)
        check = HintCheck(length, guess.until_length, self.info.vocabulary_size)
        run = DraftRun(self, item, check, listener, lambda: sequence.opened(handle))
        self._draft_stream.send(item, run)
        return run

    def tell(self, item: draft_pb2.DraftItem) -> None:
        """Send an item about guessing that has no result."""
        self._draft_stream.tell(item)

    def withdraw(self, run: DraftRun) -> None:
        """Stop waiting for the hints of a run."""
        self._draft_stream.withdraw(run.item, run)

    def note_fault(self, fault: PeerFaultError) -> None:
        """Count a result that no draft can send."""
        self.faults.note(fault)

    @property
    def reconnect_count(self) -> int:
        """Streams of items that have brought an answer, after the first of each kind."""
        return super().reconnect_count + max(0, self._draft_stream.answered_count - 1)

    async def close(self) -> None:
        """Close the streams and the channel, after the items that close handles have arrived."""
        await self._draft_stream.close()
        await super().close()


class _ProposeResults:
    """Converts a request's results for its sink."""

    def __init__(
        self,
        sink: ProposeSink,
        sequence: PeerSequence,
        stated: StatedRule,
        check: ProposalCheck,
        faults: PeerFaults,
    ) -> None:
        self._check = check
        self._faults = faults
        self._sink = sink
        self._sequence = sequence
        self._handle = sequence.handle
        self._stated = stated
        self._sent = time.monotonic()

    def receive(self, result: draft_pb2.ProposeResult) -> bool:
        round_trip = time.monotonic() - self._sent
        try:
            if result.HasField("error"):
                self._sink.fail(checked_error(result.error))
                return True
            self._check.check(result, round_trip)
        except PeerFaultError as fault:
            self._faults.note(fault)
            self._sink.fail(fault)
            return True
        self._sequence.answered(self._handle, self._stated)
        proposal = Proposal(tuple(result.tokens), tuple(map(distribution_of, result.distributions)))
        self._sink.finish(proposal, timing_of(result.timing, round_trip))
        return True

    def fail(self, error: PeerError) -> None:
        self._sink.fail(error)
