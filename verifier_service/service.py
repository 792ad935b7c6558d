"""VerifierService: jobs of items, and results of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import grpc
from google.rpc import status_pb2

from slipstream.engine.job import Statement
from slipstream.engine.sequence import Sequence
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.hosting.item_service import ItemListener, ItemService, Limit, Plan
from slipstream.hosting.model_service import set_timing
from slipstream.hosting.service_telemetry import Asked
from slipstream.rpc.item_answers import Answer, answer_items
from slipstream.rpc.sampling_wire import distribution_of, logprobs_message
from slipstream.sampling.outcome import MAX_TOP_LOGPROB_COUNT, LogprobRequest, TokenDistribution, distribution_fault
from slipstream.sampling.rule import MAX_PROPOSAL_TOP_K, SamplingRule
from slipstream.telemetry import names
from slipstream.wire.v1 import verifier_pb2, verifier_pb2_grpc
from verifier_service.runs import StreamRuns
from verifier_service.verifier import VerifyJob


class VerifierService(
    ItemService[verifier_pb2.VerifyItem, verifier_pb2.VerifyResult, VerifyJob],
    verifier_pb2_grpc.VerifierServiceServicer,
):
    """Checks proposals for many sequences over each stream."""

    async def Verify(
        self,
        request_iterator: AsyncIterator[verifier_pb2.VerifyRequest],
        context: grpc.aio.ServicerContext[verifier_pb2.VerifyRequest, verifier_pb2.VerifyResponse],
    ) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        async for response in self.answer(
            request_iterator, context, lambda results: verifier_pb2.VerifyResponse(results=results)
        ):
            yield response

    async def Run(
        self,
        request_iterator: AsyncIterator[verifier_pb2.RunRequest],
        context: grpc.aio.ServicerContext[verifier_pb2.RunRequest, verifier_pb2.RunResponse],
    ) -> AsyncIterator[verifier_pb2.RunResponse]:
        runs = StreamRuns(self.host, self.handles.of_caller(context), self.telemetry)
        context.add_done_callback(lambda _: runs.stop_all())  # type: ignore[arg-type]  # any callable will do
        async for response in answer_items(
            request_iterator,
            lambda request: request.items,
            runs.begin,
            runs.refuse,
            lambda results: verifier_pb2.RunResponse(results=results),
            self.draining,
            runs.stop_all,
        ):
            yield response

    def limits(self, item: verifier_pb2.VerifyItem) -> Iterator[Limit]:
        yield "proposal", len(item.proposal), 0, self.max_draft_length
        yield "top_logprob_count", item.top_logprob_count, 0, MAX_TOP_LOGPROB_COUNT

    def plan(self, item: verifier_pb2.VerifyItem, rule: SamplingRule) -> Plan[VerifyJob]:
        distributions, logprobs = self._distributions(item, rule), _logprob_request(item)
        statement, proposal = Statement(item.base_length, tuple(item.tail)), tuple(item.proposal)

        def make_job(sequence: Sequence) -> VerifyJob:
            sequence.is_private |= item.do_not_collect
            return VerifyJob(sequence, statement, proposal, rule, distributions, logprobs)

        return Plan(make_job, (statement, proposal, distributions, logprobs))

    def listen(self, item: verifier_pb2.VerifyItem, answer: Answer[verifier_pb2.VerifyResult]) -> _VerifyListener:
        return _VerifyListener(item, answer, self.telemetry)

    def last_result(
        self, item: verifier_pb2.VerifyItem, error: status_pb2.Status | None = None
    ) -> verifier_pb2.VerifyResult:
        return verifier_pb2.VerifyResult(handle=item.handle, round=item.round, error=error)

    def _distributions(self, item: verifier_pb2.VerifyItem, rule: SamplingRule) -> list[TokenDistribution]:
        """Return the distributions that the proposal was drawn from; none unless the rule tests
        ratios."""
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
        size = self.host.served.model.vocabulary_size
        for index, (token, distribution) in enumerate(zip(item.proposal, distributions, strict=True)):
            fault = distribution_fault(token, distribution, size)
            if fault is not None:
                raise InvalidFieldsError([FieldViolation(f"distributions[{index}]", fault)])
        return distributions


class _VerifyListener(ItemListener[verifier_pb2.VerifyItem, verifier_pb2.VerifyResult, VerifyJob]):
    """Sends the result of one item."""

    def done(self, job: VerifyJob) -> None:
        attributes = {names.DRAFT_LENGTH: len(self.item.proposal), names.ACCEPTED_COUNT: job.accepted_count}
        self.telemetry.record_answer(names.VERIFIER_SERVICE_VERIFY, Asked.of(self.item), job, attributes)
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


def _logprob_request(item: verifier_pb2.VerifyItem) -> LogprobRequest | None:
    if not item.HasField("top_logprob_count") and not item.tail_logprobs:
        return None
    return LogprobRequest(item.top_logprob_count, item.tail_logprobs)
