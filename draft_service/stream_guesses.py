"""The guesses of one stream: items that start and stop them or tell of commits, and their hints.

Wire types and the engine host meet here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from draft_service.door import Door, Start, Telling
from draft_service.guessing import GuessJob
from draft_service.worth import DraftWorth
from slipstream.agreed import MAX_HINT_COUNT
from slipstream.engine.continuing_job import sum_times
from slipstream.engine.errors import ContextExceededError, StaleRoundError
from slipstream.engine.hinting.hints import MOST_TOKENS, Hint
from slipstream.engine.hinting.horizon import Line
from slipstream.engine.host import JobHost
from slipstream.engine.job import Job
from slipstream.engine.sequence import Sequence
from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.hosting.handles import PeerHandles
from slipstream.hosting.hint_wire import hint_message
from slipstream.hosting.model_service import set_timing
from slipstream.hosting.service_telemetry import Asked, ServiceTelemetry
from slipstream.rpc.item_answers import Answer
from slipstream.rpc.sampling_wire import rule_of
from slipstream.rpc.status import status_of
from slipstream.telemetry import names
from slipstream.wire.v1 import draft_pb2

_Key = tuple[str, int]
"""Handle's name and round."""


class StreamGuesses:
    """The guesses that one stream has started. They end with it."""

    def __init__(
        self, host: JobHost[Any], handles: PeerHandles, telemetry: ServiceTelemetry, worth: DraftWorth, door: Door
    ) -> None:
        self._host = host
        self._door = door
        self._handles = handles
        self._telemetry = telemetry
        self._worth = worth
        self._running: dict[_Key, _Guesses] = {}

    def begin(
        self, item: draft_pb2.DraftItem, answer: Answer[draft_pb2.DraftResult]
    ) -> Coroutine[Any, Any, None] | None:
        """Do what an item says. Raises what `PeerHandles.open_handle` and `JobHost.run_round`
        raise, ContextExceededError and InvalidFieldsError."""
        action = item.WhichOneof("action")
        if action == "start":
            return self._start(item, answer)
        if action == "close":
            self._close(item)
            answer.finish(draft_pb2.DraftResult(handle=item.handle, round=item.round, final=True))
            return None
        key = self._handles.name_of(item.handle), item.round
        if action == "commit":
            self._commit(key, item.commit)
        elif action == "stop":
            self._host.stop_run(*key)
        else:
            raise InvalidFieldsError([FieldViolation("action", "must be start, commit, stop or close")])
        answer.leave()
        return None

    def refuse(self, item: draft_pb2.DraftItem, error: Exception) -> draft_pb2.DraftResult:
        """Return the last result of an item that has failed."""
        self._telemetry.record_failure(error)
        return draft_pb2.DraftResult(handle=item.handle, round=item.round, error=status_of(error))

    def stop_all(self) -> None:
        """End all guesses: the stream has ended, or no more items of it are read."""
        for key in [*self._running]:
            self._host.stop_run(*key)

    def _close(self, item: draft_pb2.DraftItem) -> None:
        name = self._handles.name_of(item.handle)
        for key, guesses in [*self._running.items()]:
            if key[0] == name:
                guesses.end_without_result()
        self._handles.close_handle(item.handle)

    def _commit(self, key: _Key, commit: draft_pb2.CommitTokens) -> None:
        guesses = self._running.get(key)
        try:
            self._check_commit(commit)
            if guesses is not None:
                self._check_length(min(commit.position, guesses.telling.length) + len(commit.tokens))
                contradicts = guesses.telling.add(commit.position, commit.tokens, commit.price)
                self._host.commit(*key, at_once=contradicts)
        except SlipstreamError as error:
            if guesses is None:
                raise
            guesses.failed(error)
            self._host.stop_run(*key)

    def _check_commit(self, commit: draft_pb2.CommitTokens) -> None:
        size = self._door.vocabulary_size
        violations = [*_price_violations(commit.price)]
        if commit.position < 0:
            violations.append(FieldViolation("position", f"must be at least 0, but is {commit.position}"))
        if not commit.tokens:
            violations.append(FieldViolation("tokens", "must have at least one token"))
        elif min(commit.tokens) < 0 or max(commit.tokens) >= size:
            violations.append(FieldViolation("tokens", f"must be from 0 to {size - 1}"))
        if violations:
            raise InvalidFieldsError(violations)

    def _check_length(self, length: int) -> None:
        most = self._host.served.context_length
        if length > most:
            raise ContextExceededError(f"{length} tokens do not fit into the context of {most}", context_length=most)

    def _start(
        self, item: draft_pb2.DraftItem, answer: Answer[draft_pb2.DraftResult]
    ) -> Coroutine[Any, Any, None] | None:
        start = item.start
        if violations := [*_start_violations(start)]:
            raise InvalidFieldsError(violations)
        rule = rule_of(start.rule, self._door.vocabulary_size)
        if rule.draws_ratios:
            raise InvalidFieldsError(
                [FieldViolation("rule.acceptance", "must not be RATIO: a hint has no odds for it")]
            )
        name = self._handles.open_handle(item.handle, start)
        stated = Start(start.base_length, start.tail, start.until_length, start.least_length, start.price, rule)
        telling = self._door.open(name, stated)
        self._check_length(telling.length)
        key = name, item.round

        def make_job(sequence: Sequence) -> GuessJob:
            work = telling.begin()
            guesses.job = job = GuessJob(sequence, work.rule, work.text, work.limits, self._worth)
            job.label = start.traceparent
            return job

        guesses = _Guesses(item, answer, self._telemetry, telling, lambda: self._forget(key, guesses))
        content = (start.base_length, tuple(start.tail), start.until_length, start.least_length, start.price, rule)
        guesses.is_first = self._running.setdefault(key, guesses) is guesses
        try:
            begun = self._host.run_round(name, item.round, rule, make_job, guesses, content=content)
        except BaseException:
            guesses.forget()
            raise
        return None if begun is None else self._begun(begun, guesses)

    async def _begun(self, begun: Coroutine[Any, Any, None], guesses: _Guesses) -> None:
        """Wait until a rule's structure is compiled."""
        try:
            await begun
        except BaseException:
            guesses.forget()
            raise

    def _forget(self, key: _Key, guesses: _Guesses) -> None:
        if self._running.get(key) is guesses:
            del self._running[key]


@dataclass(eq=False, slots=True)
class _Guesses:
    """Sends the hints of one job."""

    item: draft_pb2.DraftItem
    answer: Answer[draft_pb2.DraftResult]
    telemetry: ServiceTelemetry
    telling: Telling
    forget: Callable[[], None]
    job: GuessJob | None = None
    is_first: bool = True
    """True unless an earlier start of the same stream tells of the job."""
    has_ended: bool = False
    """True once the last result was sent, or there is none."""

    def parts_done(self, jobs: list[Job]) -> None:
        """Send what was guessed since the last time."""
        for job in jobs:
            assert isinstance(job, GuessJob)
            if job.parts:
                self.answer.push(self._result(job))

    def done(self, job: GuessJob) -> None:
        """Send the last result."""
        if self.has_ended:
            return
        self._end()
        start = self.item.start
        asked = Asked(self.item.handle, self.item.round, start.base_length, len(start.tail), start.traceparent)
        self.telemetry.record_answer(
            names.DRAFT_SERVICE_DRAFT,
            asked,
            job,
            {
                names.DRAFT_TOKEN_COUNT: job.lines.guess_count,
                names.COMMITTED_COUNT: self.telling.length - asked.base_length - asked.tail_length,
            },
        )
        result = self._result(job)
        result.final = True
        self.answer.finish(result)

    def failed(self, error: Exception) -> None:
        """Send the error as the last result. That a newer request came is none."""
        if self.has_ended:
            return
        if isinstance(error, StaleRoundError) and self.job is not None:
            self.done(self.job)
            return
        self._end()
        self.answer.fail(error)

    def repeated(self) -> None:
        """Send nothing: the first listener does. If that is another stream's, its hints may be lost
        to the caller, which has to start again."""
        if self.is_first:
            self.failed(StaleRoundError("another stream has started this round", last_round=self.item.round))
        else:
            self.end_without_result()

    def end_without_result(self) -> None:
        """Send nothing any more."""
        self._end()
        self.answer.leave()

    def _end(self) -> None:
        self.has_ended = True
        self.forget()

    def _result(self, job: GuessJob) -> draft_pb2.DraftResult:
        """Return the newest hint of each line, the likeliest first."""
        result = draft_pb2.DraftResult(handle=self.item.handle, round=self.item.round)
        parts = [job.parts.popleft() for _ in range(len(job.parts))]
        newest: dict[Line, Hint] = {}
        for part in parts:
            newest.update(part.hints)
        told = [hint for hint in map(self.telling.hint, newest.values()) if hint is not None]
        hints = sorted(told, key=lambda hint: -sum(hint.survivals))
        result.hints.extend(map(hint_message, hints[:MAX_HINT_COUNT]))
        set_timing(result.timing, sum_times([part.timing for part in parts]))
        return result


def _start_violations(start: draft_pb2.StartDraft) -> Iterator[FieldViolation]:
    """Yield what is wrong with an item by itself."""
    committed = start.base_length + len(start.tail)
    if start.until_length <= committed:
        yield FieldViolation(
            "until_length", f"must be above the committed length {committed}, but is {start.until_length}"
        )
    if not 0 <= start.least_length <= MOST_TOKENS:
        yield FieldViolation("least_length", f"must be from 0 to {MOST_TOKENS}, but is {start.least_length}")
    yield from _price_violations(start.price)


def _price_violations(price: float) -> Iterator[FieldViolation]:
    if not 0 <= price < math.inf:
        yield FieldViolation("price", f"must be finite and at least 0, but is {price}")
