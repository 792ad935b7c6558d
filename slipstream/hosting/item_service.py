"""The stream of items that the draft and the verifier service answer alike.

A subclass says what its items ask: their limits, the job that computes one, and the results. Wire
types and the engine host meet here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
from google.rpc import status_pb2

from slipstream.engine.host import JobHost
from slipstream.engine.job import Job
from slipstream.engine.sequence import Sequence
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.hosting.handles import Handles, PeerHandles
from slipstream.hosting.service_telemetry import ServiceTelemetry
from slipstream.rpc.item_answers import Answer, answer_items
from slipstream.rpc.item_results import Keyed
from slipstream.rpc.status import status_of
from slipstream.sampling.rule import SamplingRule

ItemT = TypeVar("ItemT", bound=Any)
ResultT = TypeVar("ResultT", bound=Keyed)
JobT = TypeVar("JobT", bound=Job)
ResponseT = TypeVar("ResponseT")

Limit = tuple[str, int, int, int]
"""A field's name, its value, and the least and the greatest value that it may have."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[JobT]):
    """The computation that an item asks for."""

    make_job: Callable[[Sequence], JobT]
    content: tuple[object, ...]
    """All that the item states. A repeated round has to state the same."""


class ItemService(ABC, Generic[ItemT, ResultT, JobT]):
    """Answers the rounds of many sequences over each stream."""

    def __init__(
        self,
        host: JobHost[Any],
        handles: Handles,
        telemetry: ServiceTelemetry,
        *,
        max_draft_length: int,
        draining: asyncio.Event,
    ) -> None:
        self.host = host
        self.telemetry = telemetry
        self.max_draft_length = max_draft_length
        self.handles = handles
        self.draining = draining

    @abstractmethod
    def limits(self, item: ItemT) -> Iterable[Limit]:
        """Yield the limits of an item's fields."""

    @abstractmethod
    def plan(self, item: ItemT, rule: SamplingRule) -> Plan[JobT]:
        """Return what an item asks for under its rule. InvalidFieldsError."""

    @abstractmethod
    def listen(self, item: ItemT, answer: Answer[ResultT]) -> ItemListener[ItemT, ResultT, JobT]:
        """Return what makes an item's results of its job."""

    @abstractmethod
    def last_result(self, item: ItemT, error: status_pb2.Status | None = None) -> ResultT:
        """Return an item's last result without any tokens: of a closed handle, or of a failed
        item."""

    async def answer(
        self,
        requests: AsyncIterator[Any],
        context: grpc.aio.ServicerContext[Any, Any],
        pack: Callable[[list[ResultT]], ResponseT],
    ) -> AsyncGenerator[ResponseT]:
        """Answer the items of a stream; ``pack`` makes a response of results."""
        begin = partial(self._begin, self.handles.of_caller(context))
        async for response in answer_items(
            requests, lambda request: request.items, begin, self._refuse, pack, self.draining
        ):
            yield response

    def _begin(self, handles: PeerHandles, item: ItemT, answer: Answer[ResultT]) -> Coroutine[Any, Any, None] | None:
        if item.HasField("close"):
            handles.close_handle(item.handle)
            answer.finish(self.last_result(item))
            return None
        violations = [
            FieldViolation(name, f"must be from {least} to {most}, but is {value}")
            for name, value, least, most in self.limits(item)
            if not least <= value <= most
        ]
        if violations:
            raise InvalidFieldsError(violations)
        name, rule = handles.resolve(item)
        plan = self.plan(item, rule)

        def make_labelled_job(sequence: Sequence) -> JobT:
            job = plan.make_job(sequence)
            job.label = item.traceparent
            return job

        listener = self.listen(item, answer)
        return self.host.run_round(name, item.round, rule, make_labelled_job, listener, content=(*plan.content, rule))

    def _refuse(self, item: ItemT, error: Exception) -> ResultT:
        self.telemetry.record_failure(error)
        return self.last_result(item, status_of(error))


@dataclass(eq=False, slots=True)
class ItemListener(ABC, Generic[ItemT, ResultT, JobT]):
    """Sends the results of one item, whose job the host runs."""

    item: ItemT
    answer: Answer[ResultT]
    telemetry: ServiceTelemetry

    def parts_done(self, parts: list[Job]) -> None:
        """Send what some of the job's parts have computed."""
        raise AssertionError("this job has no parts")

    @abstractmethod
    def done(self, job: JobT) -> None:
        """Send what is left, and the last result."""

    def failed(self, error: Exception) -> None:
        """Send the error as the last result."""
        self.answer.fail(error)

    def repeated(self) -> None:
        """Send nothing."""
        raise AssertionError("this job is no run")
