"""The verifier service at one address. Its messages end here."""

from __future__ import annotations

import time

from orchestrator.peers.exchange import Terms, Verification, timing_of
from orchestrator.peers.model_peer import ModelPeer
from orchestrator.peers.sequence import PeerSequence, Position
from orchestrator.speculation.proposal import Proposal
from slipstream.rpc.item_stream import ItemStream
from slipstream.rpc.sampling_wire import distribution_message, logprobs_of
from slipstream.rpc.status import error_of
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import model_pb2, verifier_pb2, verifier_pb2_grpc


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
        timing = timing_of(result.timing, time.monotonic() - started)
        return Verification(
            accepted_count=result.accepted_count,
            next_token=result.next_token,
            prefilled_count=result.prefilled_count,
            timing=timing,
            logprobs=tuple(map(logprobs_of, result.logprobs)),
            tail_logprobs=tuple(map(logprobs_of, result.tail_logprobs)),
            margin=result.margin,
        )
