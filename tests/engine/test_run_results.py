"""The results of a run, as a verifier sends them, hold against the orchestrator's check."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.peers.checking.results import RunCheck
from slipstream.engine.hinting.hints import Source
from slipstream.engine.job import JobTiming, Statement
from slipstream.engine.run_hints import RunStep
from slipstream.engine.run_job import RunEnd, RunJob, RunLimits, RunPart
from slipstream.engine.sequence import Sequence
from slipstream.hosting.service_telemetry import ServiceTelemetry
from slipstream.rpc.item_answers import Answer
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import verifier_pb2
from verifier_service.runs import _RunListener

END = 9
RULE = SamplingRule(end_token_ids=(END,))


class Sent:
    """What a run's answer sends."""

    def __init__(self) -> None:
        self.results: list[verifier_pb2.RunResult] = []

    def push(self, result: verifier_pb2.RunResult) -> None:
        self.results.append(result)

    finish = push


@pytest.mark.parametrize(("last", "end"), [(END, RunEnd.TOKEN), (7, RunEnd.UNTIL)])
def test_parts_that_are_sent_late_do_not_tell_the_end_without_saying_so(last: int, end: RunEnd) -> None:
    job = RunJob(Sequence("handle"), Statement(0, (1,)), RULE, RunLimits(3, 3))
    sent = Sent()
    item = verifier_pb2.RunItem(handle="handle", round=1, start=verifier_pb2.StartRun(tail=[1]))
    listener = _RunListener(item, cast(Answer[Any], sent), ServiceTelemetry(), lambda: None, lambda: True)
    for token in (5, last):  # the event loop is busy for two steps
        job.advance([Choice(token, 1.0)])
        job.make_part(0.0, is_over=token == last)
    assert job.end is end
    listener.parts_done([job])
    listener.done(job)
    check = RunCheck(1, 3, (1,), 256, RULE, None)
    for result in sent.results:
        check.check(result, 10.0)
    assert [token for result in sent.results for token in result.tokens] == [5, last]


def test_a_run_that_ends_while_its_parts_are_sent_tells_its_last_token_with_its_end() -> None:
    class Racing(RunJob):
        """A run that the model thread ends just after the event loop has read that it goes on."""

        is_read = False

        @property
        def end(self) -> RunEnd | None:
            before = super().end
            if self.is_read:
                self.is_read = False
                self.advance([Choice(END, 1.0)])
                self.make_part(0.0, is_over=True)
            return before

    job = Racing(Sequence("handle"), Statement(0, (1,)), RULE, RunLimits(9, 9))
    sent = Sent()
    item = verifier_pb2.RunItem(handle="handle", round=1, start=verifier_pb2.StartRun(tail=[1]))
    listener = _RunListener(item, cast(Answer[Any], sent), ServiceTelemetry(), lambda: None, lambda: True)
    job.advance([Choice(5, 1.0)])
    job.make_part(0.0)
    job.is_read = True
    listener.parts_done([job])
    listener.done(job)
    assert [(list(result.tokens), result.end) for result in sent.results] == [
        ([5], verifier_pb2.RUN_END_UNSPECIFIED),
        ([END], verifier_pb2.RUN_END_TOKEN),
    ]


def test_the_seconds_for_which_steps_waited_for_hints_are_told_and_counted() -> None:
    job, telemetry, sent = (
        RunJob(Sequence("handle"), Statement(0, (1,)), RULE, RunLimits(9, 9)),
        ServiceTelemetry(),
        Sent(),
    )
    item = verifier_pb2.RunItem(handle="handle", round=1, start=verifier_pb2.StartRun(tail=[1]))
    listener = _RunListener(item, cast(Answer[Any], sent), telemetry, lambda: None, lambda: True)
    steps = [RunStep(1), RunStep(1, held=0.25), RunStep(2, 2, 1, Source.DRAFT, held=0.5)]
    job.parts.append(RunPart(1, [Choice(token, 1.0) for token in (5, 6, 7, 8)], JobTiming(started=0.0), steps))
    listener.parts_done([job])
    assert [step.held.ToMilliseconds() for step in sent.results[0].steps] == [0, 250, 500]
    assert telemetry.held_seconds == 0.75
