"""DraftService on the wire: items to jobs, jobs to results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from draft_service.proposer import ProposeJob
from slipstream.engine.host import EngineHost
from slipstream.engine.job import Statement
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.hosting.model_service import timing_of
from slipstream.rpc.item_stream import answer_items
from slipstream.rpc.sampling_wire import distribution_message, rule_of
from slipstream.rpc.status import status_of
from slipstream.telemetry import names
from slipstream.telemetry.tracing import record_server_span
from slipstream.v1 import draft_pb2, draft_pb2_grpc


class DraftService(draft_pb2_grpc.DraftServiceServicer):
    """Answers the rounds of many sequences over each stream."""

    def __init__(self, host: EngineHost[ProposeJob], *, max_draft_length: int, draining: asyncio.Event) -> None:
        self._host = host
        self._max_draft_length = max_draft_length
        self._draining = draining

    async def Propose(
        self,
        request_iterator: AsyncIterator[draft_pb2.ProposeRequest],
        context: grpc.aio.ServicerContext[draft_pb2.ProposeRequest, draft_pb2.ProposeResponse],
    ) -> AsyncIterator[draft_pb2.ProposeResponse]:
        async for response in answer_items(
            request_iterator,
            lambda request: request.items,
            self._answer,
            lambda results: draft_pb2.ProposeResponse(results=results),
            self._draining,
        ):
            yield response

    async def _answer(self, item: draft_pb2.ProposeItem) -> draft_pb2.ProposeResult:
        try:
            job = await self._propose(item)
        except Exception as error:
            return draft_pb2.ProposeResult(handle=item.handle, round=item.round, error=status_of(error), final=True)
        self._record(item, job)
        branches = [
            draft_pb2.Branch(
                accepted_count=branch.accepted_count,
                next_token=branch.next_token,
                tokens=branch.tokens,
                distributions=map(distribution_message, branch.distributions),
            )
            for branch in job.branches
        ]
        return draft_pb2.ProposeResult(
            handle=item.handle, round=item.round, branches=branches, final=True, timing=timing_of(job.timing)
        )

    async def _propose(self, item: draft_pb2.ProposeItem) -> ProposeJob:
        limits = (("draft_length", item.draft_length, 1), ("in_flight", len(item.in_flight), 0))
        violations = [
            FieldViolation(name, f"must be from {low} to {self._max_draft_length}, but is {value}")
            for name, value, low in limits
            if not low <= value <= self._max_draft_length
        ]
        if violations:
            raise InvalidFieldsError(violations)
        rule = rule_of(item.rule)
        statement = Statement(item.base_length, tuple(item.tail))
        in_flight = tuple(item.in_flight)
        await self._host.prepare(rule)
        return await self._host.run(
            item.handle,
            item.round,
            lambda sequence: ProposeJob(sequence, statement, in_flight, item.draft_length, rule),
        )

    def _record(self, item: draft_pb2.ProposeItem, job: ProposeJob) -> None:
        timing = job.timing
        record_server_span(
            names.DRAFT_SERVICE_PROPOSE,
            item.traceparent,
            timing.arrived_unix_ns,
            timing.arrived_unix_ns + int(timing.total * 1e9),
            {
                names.HANDLE: item.handle,
                names.ROUND_NUMBER: item.round,
                names.BASE_LENGTH: item.base_length,
                names.TAIL_LENGTH: len(item.tail),
                names.DRAFT_LENGTH: item.draft_length,
                names.QUEUE_MS: timing.queue * 1e3,
                names.FORWARD_MS: timing.forward * 1e3,
            },
        )
