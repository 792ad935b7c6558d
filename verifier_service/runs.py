"""The runs of one stream: items that start, grant and stop them, and the results of their parts.

Wire types and the engine host meet here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from slipstream.agreed import LONGEST_HOLD_SECONDS
from slipstream.engine.continuing_job import sum_times
from slipstream.engine.errors import StaleRoundError
from slipstream.engine.hinting.hints import MOST_TOKENS
from slipstream.engine.host import JobHost
from slipstream.engine.job import Job, Statement
from slipstream.engine.run_hints import HintTerms, RunStep, merged
from slipstream.engine.run_job import RunEnd, RunJob, RunLimits
from slipstream.engine.sequence import Sequence
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.hosting.handles import PeerHandles
from slipstream.hosting.hint_wire import hint_of
from slipstream.hosting.model_service import set_timing
from slipstream.hosting.service_telemetry import Asked, ServiceTelemetry
from slipstream.rpc.item_answers import Answer
from slipstream.rpc.sampling_wire import logprobs_message, rule_of
from slipstream.rpc.status import status_of
from slipstream.rpc.wire import set_duration
from slipstream.sampling.outcome import MAX_TOP_LOGPROB_COUNT, LogprobRequest
from slipstream.telemetry import names
from slipstream.wire.v1 import verifier_pb2

_ENDS = {
    None: verifier_pb2.RUN_END_UNSPECIFIED,
    RunEnd.TOKEN: verifier_pb2.RUN_END_TOKEN,
    RunEnd.UNTIL: verifier_pb2.RUN_END_UNTIL,
    RunEnd.STOPPED: verifier_pb2.RUN_END_STOPPED,
}


class StreamRuns:
    """The runs that one stream has started. They end with it."""

    def __init__(self, host: JobHost[Any], handles: PeerHandles, telemetry: ServiceTelemetry) -> None:
        self._host = host
        self._handles = handles
        self._telemetry = telemetry
        self._running: dict[tuple[str, int], None] = {}
        """Handle's name and round of each run that has not ended."""

    def begin(
        self, item: verifier_pb2.RunItem, answer: Answer[verifier_pb2.RunResult]
    ) -> Coroutine[Any, Any, None] | None:
        """Do what an item says. Raises what `PeerHandles.open_handle` and `JobHost.run_round`
        raise, and InvalidFieldsError."""
        action = item.WhichOneof("action")
        if action == "start":
            return self._start(item, answer)
        if action == "close":
            self._handles.close_handle(item.handle)
            answer.finish(verifier_pb2.RunResult(handle=item.handle, round=item.round))
            return None
        name = self._handles.name_of(item.handle)
        if action == "grant":
            self._host.grant(name, item.round, item.grant.granted_length)
        elif action == "stop":
            self._host.stop_run(name, item.round)
        elif action == "hint":
            self._hint(name, item)
        else:
            raise InvalidFieldsError([FieldViolation("action", "must be start, grant, stop, hint or close")])
        answer.leave()
        return None

    def _hint(self, name: str, item: verifier_pb2.RunItem) -> None:
        try:
            hint = hint_of(item.hint, self._host.served.model.vocabulary_size)
        except InvalidFieldsError as error:  # the run goes on without it
            self._telemetry.record_failure(error)
            return
        self._host.hint(name, item.round, hint)

    def refuse(self, item: verifier_pb2.RunItem, error: Exception) -> verifier_pb2.RunResult:
        """Return the last result of an item that has failed."""
        self._telemetry.record_failure(error)
        return verifier_pb2.RunResult(handle=item.handle, round=item.round, error=status_of(error))

    def stop_all(self) -> None:
        """End all runs: the stream has ended, or no more items of it are read."""
        for name, number in [*self._running]:
            self._host.stop_run(name, number)

    def _start(
        self, item: verifier_pb2.RunItem, answer: Answer[verifier_pb2.RunResult]
    ) -> Coroutine[Any, Any, None] | None:
        start = item.start
        if violations := [*_violations(start)]:
            raise InvalidFieldsError(violations)
        rule = rule_of(start.rule, self._host.served.model.vocabulary_size)
        if rule.draws_ratios:
            raise InvalidFieldsError([FieldViolation("rule.acceptance", "must not be RATIO: a run has no proposal")])
        name = self._handles.open_handle(item.handle, start)
        statement = Statement(start.base_length, tuple(start.tail))
        limits = RunLimits(start.until_length, start.granted_length)
        logprobs, hinting = _logprob_request(start), _hint_terms(start)
        key = name, item.round

        def make_job(sequence: Sequence) -> RunJob:
            job = RunJob(sequence, statement, rule, limits, logprobs, hinting)
            job.label = start.traceparent
            sequence.is_private |= start.do_not_collect
            return job

        listener = _RunListener(
            item, answer, self._telemetry, lambda: self._running.pop(key, None), lambda: key in self._running
        )
        begun = self._host.run_round(
            name, item.round, rule, make_job, listener, content=(statement, limits, logprobs, rule, hinting)
        )
        if key in self._running or listener.is_repeated:  # then the run is that of an earlier start
            return begun
        self._running[key] = None
        return None if begun is None else self._begun(begun, key, listener)

    async def _begun(self, begun: Coroutine[Any, Any, None], key: tuple[str, int], listener: _RunListener) -> None:
        """Wait until a run's structure is compiled."""
        try:
            await begun
        except BaseException:
            self._running.pop(key, None)
            raise
        if listener.is_repeated:  # another stream has started it
            self._running.pop(key, None)


@dataclass(eq=False, slots=True)
class _RunListener:
    """Sends the results of one run."""

    item: verifier_pb2.RunItem
    answer: Answer[verifier_pb2.RunResult]
    telemetry: ServiceTelemetry
    forget: Callable[[], None]
    is_known: Callable[[], bool]
    """Says whether this stream has started the run."""
    is_repeated: bool = field(default=False, init=False)
    """True if an earlier start of the same run tells of it."""
    _is_first: bool = field(default=True)

    def parts_done(self, jobs: list[Job]) -> None:
        """Send what the run has chosen since the last time. What a run has left when it ends comes
        with its end."""
        for job in jobs:
            assert isinstance(job, RunJob)
            # Counted before the end is read: the model thread sets the end, and then makes the last
            # part, whose token must not be told before the end that it brings.
            count = len(job.parts)
            if count and job.end is None:
                self.answer.push(self._result(job, count, None))

    def done(self, job: RunJob) -> None:
        """Send the last result."""
        self.forget()
        start = self.item.start
        asked = Asked(self.item.handle, self.item.round, start.base_length, len(start.tail), start.traceparent)
        self.telemetry.record_answer(
            names.VERIFIER_SERVICE_RUN,
            asked,
            job,
            {names.COMMITTED_COUNT: job.length - asked.base_length - asked.tail_length},
        )
        self.answer.finish(self._result(job, len(job.parts), job.end))

    def failed(self, error: Exception) -> None:
        """Send the error as the last result."""
        self.forget()
        self.answer.fail(error)

    def repeated(self) -> None:
        """Send nothing: the run's first listener does. If that is another stream's, what it has
        sent may be lost, so the caller has to state the position again."""
        self.is_repeated = True
        if self.is_known():
            self.answer.leave()
        else:
            self.answer.fail(StaleRoundError("another stream has started this run", last_round=self.item.round))

    def _result(self, job: RunJob, count: int, end: RunEnd | None) -> verifier_pb2.RunResult:
        """Return the first ``count`` parts that wait as one result."""
        parts = [job.parts.popleft() for _ in range(count)]
        choices = [choice for part in parts for choice in part.choices]
        result = verifier_pb2.RunResult(
            handle=self.item.handle,
            round=self.item.round,
            position=parts[0].position if parts else job.length,
            tokens=[choice.token for choice in choices],
            logprobs=[logprobs_message(choice.logprobs) for choice in choices if choice.logprobs is not None],
            margin=min((choice.margin for choice in choices), default=math.inf),
            end=_ENDS[end],
        )
        set_timing(result.timing, sum_times([part.timing for part in parts]))
        for step in merged([step for part in parts for step in part.steps]):
            _add_step(result, step)
            self.telemetry.held_seconds += step.held
        if self._is_first and choices:
            self._is_first = False
            result.prefilled_count = job.prefilled_count
            result.tail_logprobs.extend(map(logprobs_message, job.tail_logprobs))
        return result


def _add_step(result: verifier_pb2.RunResult, step: RunStep) -> None:
    message = result.steps.add(
        token_count=step.token_count, hint_count=step.hint_count, accepted_count=step.accepted_count
    )
    if step.source is not None:
        message.source = step.source.value  # type: ignore[assignment]  # the two enums have the same numbers
        message.source_id = step.source_id
    set_duration(message.forward, step.forward)
    if step.held:
        set_duration(message.held, step.held)


def _violations(start: verifier_pb2.StartRun) -> Iterator[FieldViolation]:
    """Yield what is wrong with an item by itself."""
    committed = start.base_length + len(start.tail)
    if start.until_length <= committed:
        yield FieldViolation(
            "until_length", f"must be above the committed length {committed}, but is {start.until_length}"
        )
    if start.granted_length <= committed:
        yield FieldViolation(
            "granted_length", f"must be above the committed length {committed}, but is {start.granted_length}"
        )
    if not 0 <= start.top_logprob_count <= MAX_TOP_LOGPROB_COUNT:
        yield FieldViolation(
            "top_logprob_count", f"must be from 0 to {MAX_TOP_LOGPROB_COUNT}, but is {start.top_logprob_count}"
        )

    if not 0 <= start.fixed_hint_count <= MOST_TOKENS:
        yield FieldViolation("fixed_hint_count", f"must be from 0 to {MOST_TOKENS}, but is {start.fixed_hint_count}")
    if start.HasField("longest_hold") and not 0 < start.longest_hold.ToNanoseconds() <= 1e9 * LONGEST_HOLD_SECONDS:
        yield FieldViolation("longest_hold", f"must be above 0 and at most {LONGEST_HOLD_SECONDS:g} s")


def _hint_terms(start: verifier_pb2.StartRun) -> HintTerms:
    longest_hold = start.longest_hold.ToNanoseconds() / 1e9
    return HintTerms(start.takes_ngrams, start.fixed_hint_count, longest_hold, start.takes_heads)


def _logprob_request(start: verifier_pb2.StartRun) -> LogprobRequest | None:
    if not start.HasField("top_logprob_count") and not start.tail_logprobs:
        return None
    return LogprobRequest(start.top_logprob_count, start.tail_logprobs)
