"""DraftService: jobs of items, and results of jobs."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import status_pb2

from draft_service.door import Door, OneVocabulary
from draft_service.proposer import ProposeJob
from draft_service.stream_guesses import StreamGuesses
from draft_service.translation.spelling import Spelling
from draft_service.translation.translated import TwoVocabularies
from draft_service.translation.vocabularies import Vocabularies
from draft_service.worth import DraftWorth
from slipstream.agreed import MAX_ANSWER_BYTES
from slipstream.engine.host import JobHost
from slipstream.engine.job import Statement
from slipstream.engine.sequence import Sequence
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.hosting.handles import Handles
from slipstream.hosting.item_service import ItemListener, ItemService, Limit, Plan
from slipstream.hosting.model_service import set_timing
from slipstream.hosting.service_telemetry import Asked, ServiceTelemetry
from slipstream.hosting.tokenizer_files import TokenizerFiles
from slipstream.rpc.item_answers import Answer, answer_items
from slipstream.rpc.sampling_wire import distribution_message
from slipstream.sampling.rule import SamplingRule
from slipstream.telemetry import names
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc

_ID_BYTES, _FLOAT_BYTES, _FIELD_BYTES = 5, 4, 16
"""Most bytes of a token's id, of a number, and of a field's tag with its length."""

_OTHER_ODDS = (
    "cannot be tested with this draft: it has another vocabulary than the target, and so have the odds of its "
    "proposals. It sends hints alone"
)

_REST_BYTES = 2**16
"""Upper bound of a result's bytes besides its tokens."""


class DraftService(
    ItemService[draft_pb2.ProposeItem, draft_pb2.ProposeResult, ProposeJob], draft_pb2_grpc.DraftServiceServicer
):
    """Proposes tokens for many sequences over each stream, when asked or by itself."""

    def __init__(
        self,
        host: JobHost[Any],
        handles: Handles,
        telemetry: ServiceTelemetry,
        *,
        tokenizers: tuple[TokenizerFiles, TokenizerFiles] | None = None,
        **settings: Any,
    ) -> None:
        """``settings`` as `ItemService` has them. ``tokenizers`` are the callers' and the draft's;
        None: callers speak the draft's tokens."""
        super().__init__(host, handles, telemetry, **settings)
        served = host.served
        self._door: Door
        if tokenizers is None:
            self._door = OneVocabulary(served.model.vocabulary_size, served.context_length)
        else:
            target, draft = map(Spelling, tokenizers)
            self._door = TwoVocabularies(Vocabularies(target, draft, served.model.end_token_ids), served.context_length)
        handles.on_closed(self._door.forget)
        digest = hashlib.sha256(handles.weights_fingerprint.encode()).digest()
        self._worth = DraftWorth(int.from_bytes(digest[:8], "big"), host.step_times)

    async def Propose(
        self,
        request_iterator: AsyncIterator[draft_pb2.ProposeRequest],
        context: grpc.aio.ServicerContext[draft_pb2.ProposeRequest, draft_pb2.ProposeResponse],
    ) -> AsyncIterator[draft_pb2.ProposeResponse]:
        async for response in self.answer(
            request_iterator, context, lambda results: draft_pb2.ProposeResponse(results=results)
        ):
            yield response

    async def Draft(
        self,
        request_iterator: AsyncIterator[draft_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[draft_pb2.DraftRequest, draft_pb2.DraftResponse],
    ) -> AsyncIterator[draft_pb2.DraftResponse]:
        guesses = StreamGuesses(self.host, self.handles.of_caller(context), self.telemetry, self._worth, self._door)
        context.add_done_callback(lambda _: guesses.stop_all())  # type: ignore[arg-type]  # any callable will do
        async for response in answer_items(
            request_iterator,
            lambda request: request.items,
            guesses.begin,
            guesses.refuse,
            lambda results: draft_pb2.DraftResponse(results=results),
            self.draining,
            guesses.stop_all,
        ):
            yield response

    def limits(self, item: draft_pb2.ProposeItem) -> Iterator[Limit]:
        yield "draft_length", item.draft_length, 1, self.max_draft_length

    def plan(self, item: draft_pb2.ProposeItem, rule: SamplingRule) -> Plan[ProposeJob]:
        if not self._door.speaks_draft:
            raise InvalidFieldsError([FieldViolation("rule.acceptance", _OTHER_ODDS)])
        statement = Statement(item.base_length, tuple(item.tail))
        draft_length = min(item.draft_length, longest_that_fits(rule))

        def make_job(sequence: Sequence) -> ProposeJob:
            return ProposeJob(sequence, statement, draft_length, rule)

        return Plan(make_job, (statement, item.draft_length))

    def listen(self, item: draft_pb2.ProposeItem, answer: Answer[draft_pb2.ProposeResult]) -> _ProposeListener:
        return _ProposeListener(item, answer, self.telemetry)

    def last_result(
        self, item: draft_pb2.ProposeItem, error: status_pb2.Status | None = None
    ) -> draft_pb2.ProposeResult:
        return draft_pb2.ProposeResult(handle=item.handle, round=item.round, error=error)


@dataclass(eq=False, slots=True)
class _ProposeListener(ItemListener[draft_pb2.ProposeItem, draft_pb2.ProposeResult, ProposeJob]):
    """Sends the proposal of one item."""

    def done(self, job: ProposeJob) -> None:
        attributes = {names.DRAFT_LENGTH: self.item.draft_length}
        self.telemetry.record_answer(names.DRAFT_SERVICE_PROPOSE, Asked.of(self.item), job, attributes)
        result = draft_pb2.ProposeResult(
            handle=self.item.handle,
            round=self.item.round,
            tokens=[choice.token for choice in job.drawn],
            distributions=[distribution_message(c.distribution) for c in job.drawn if c.distribution is not None],
        )
        set_timing(result.timing, job.timing)
        self.answer.finish(result)


def longest_that_fits(rule: SamplingRule) -> int:
    """Return the most tokens of a proposal that fit into a message. Under RATIO each token comes
    with its distribution."""
    token_bytes = _ID_BYTES + 2 * _FLOAT_BYTES
    if rule.draws_ratios:
        token_bytes += rule.proposal_top_k * (_ID_BYTES + _FLOAT_BYTES) + 3 * _FIELD_BYTES
    return (MAX_ANSWER_BYTES - _REST_BYTES) // token_bytes
