"""VerifierService on the wire: items to jobs, jobs to results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from slipstream.engine.host import EngineHost
from slipstream.engine.job import Job, Statement
from slipstream.engine.sequence import Sequence
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.hosting.handles import Handles, PeerHandles
from slipstream.hosting.model_service import set_timing
from slipstream.hosting.watching import ServiceWatch
from slipstream.rpc.item_answers import Answer, answer_items
from slipstream.rpc.sampling_wire import distribution_of, logprobs_message
from slipstream.rpc.status import status_of
from slipstream.sampling.outcome import MAX_TOP_LOGPROB_COUNT, LogprobRequest, TokenDistribution, distribution_fault
from slipstream.sampling.rule import MAX_PROPOSAL_TOP_K, SamplingRule
from slipstream.telemetry import names
from slipstream.wire.v1 import verifier_pb2, verifier_pb2_grpc
from verifier_service.verifier import VerifyJob


class VerifierService(verifier_pb2_grpc.VerifierServiceServicer):
    """Answers the rounds of many sequences over each stream."""

    def __init__(
        self,
        host: EngineHost[VerifyJob],
        handles: Handles,
        watch: ServiceWatch,
        *,
        max_draft_length: int,
        draining: asyncio.Event,
    ) -> None:
        self._watch = watch
        self._host = host
        self._handles = handles
        self._max_draft_length = max_draft_length
        self._draining = draining

    async def Verify(
        self,
        request_iterator: AsyncIterator[verifier_pb2.VerifyRequest],
        context: grpc.aio.ServicerContext[verifier_pb2.VerifyRequest, verifier_pb2.VerifyResponse],
    ) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        async for response in answer_items(
            request_iterator,
            lambda request: request.items,
            partial(self._begin, self._handles.of(context)),
            self._refusal,
            lambda results: verifier_pb2.VerifyResponse(results=results),
            self._draining,
        ):
            yield response

    def _begin(
        self, handles: PeerHandles, item: verifier_pb2.VerifyItem, answer: Answer[verifier_pb2.VerifyResult]
    ) -> Coroutine[Any, Any, None] | None:
        if item.HasField("close"):
            handles.close(item.handle)
            answer.finish(verifier_pb2.VerifyResult(handle=item.handle, round=item.round))
            return None
        if len(item.proposal) > self._max_draft_length:
            limit = f"must have at most {self._max_draft_length} tokens, but has {len(item.proposal)}"
            raise InvalidFieldsError([FieldViolation("proposal", limit)])
        logprobs = _logprob_request(item)
        name, rule = handles.begin(item)
        distributions = self._distributions(item, rule)
        statement = Statement(item.base_length, tuple(item.tail))
        proposal = tuple(item.proposal)

        def job_on(sequence: Sequence) -> VerifyJob:
            job = VerifyJob(sequence, statement, proposal, rule, distributions, logprobs)
            job.label = item.traceparent
            return job

        return self._host.run_round(
            name,
            item.round,
            rule,
            job_on,
            _Verifying(item, answer, self._watch),
            content=(statement, proposal, rule, distributions, logprobs),
        )

    def _refusal(self, item: verifier_pb2.VerifyItem, error: Exception) -> verifier_pb2.VerifyResult:
        self._watch.refused(error)
        return verifier_pb2.VerifyResult(handle=item.handle, round=item.round, error=status_of(error))

    def _distributions(self, item: verifier_pb2.VerifyItem, rule: SamplingRule) -> list[TokenDistribution]:
        """What the proposal was drawn from; nothing unless the rule is one of ratios."""
        if not rule.draws_ratios:
            return []
        if len(item.distributions) != len(item.proposal):
            count = (
                f"must be one for each of the {len(item.proposal)} proposal tokens, but are {len(item.distributions)}"
            )
            raise InvalidFieldsError([FieldViolation("distributions", count)])
        most = MAX_PROPOSAL_TOP_K
        for index, message in enumerate(item.distributions):
            if len(message.token_ids) > most or len(message.probabilities) > most:
                raise InvalidFieldsError(
                    [FieldViolation(f"distributions[{index}]", f"must have at most {most} tokens")]
                )
        distributions = [distribution_of(message) for message in item.distributions]
        size = self._host.engine.model.vocabulary_size
        for index, (token, distribution) in enumerate(zip(item.proposal, distributions, strict=True)):
            fault = distribution_fault(token, distribution, size)
            if fault is not None:
                raise InvalidFieldsError([FieldViolation(f"distributions[{index}]", fault)])
        return distributions


@dataclass(eq=False, slots=True)
class _Verifying:
    """An item whose round runs."""

    item: verifier_pb2.VerifyItem
    answer: Answer[verifier_pb2.VerifyResult]
    watch: ServiceWatch

    def parts_done(self, parts: list[Job]) -> None:
        raise AssertionError("a verification has no parts")

    def done(self, job: VerifyJob) -> None:
        attributes = {names.DRAFT_LENGTH: len(self.item.proposal), names.ACCEPTED_COUNT: job.accepted_count}
        self.watch.answered(names.VERIFIER_SERVICE_VERIFY, self.item, job, attributes)
        result = verifier_pb2.VerifyResult(
            handle=self.item.handle,
            round=self.item.round,
            accepted_count=job.accepted_count,
            next_token=job.next_token,
            prefilled_count=job.prefilled_count,
            margin=job.margin,
            logprobs=map(logprobs_message, job.logprobs),
            tail_logprobs=map(logprobs_message, job.tail_logprobs),
        )
        set_timing(result.timing, job.timing)
        self.answer.finish(result)

    def failed(self, error: Exception) -> None:
        self.answer.fail(error)


def _logprob_request(item: verifier_pb2.VerifyItem) -> LogprobRequest | None:
    if not item.HasField("top_logprob_count") and not item.tail_logprobs:
        return None
    if not 0 <= item.top_logprob_count <= MAX_TOP_LOGPROB_COUNT:
        limit = f"must be from 0 to {MAX_TOP_LOGPROB_COUNT}, but is {item.top_logprob_count}"
        raise InvalidFieldsError([FieldViolation("top_logprob_count", limit)])
    return LogprobRequest(item.top_logprob_count, item.tail_logprobs)
