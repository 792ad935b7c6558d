"""The times of steps: each job's timing, and the time prompts took."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slipstream.engine.engine import Append
from slipstream.engine.job import Job
from slipstream.engine.prefill_time import PrefillTime
from slipstream.engine.step_note import OnStep, StepNote

Batch = Sequence[tuple[Job, Append]]
"""The jobs of a step, each with its part of it."""


class StepClock:
    """Records arrivals, steps and ends as they happen."""

    def __init__(self, step_times: Sequence[tuple[int, float]] = (), on_step: OnStep = lambda _: None) -> None:
        """``step_times`` as `slipstream.engine.engine.Engine.profile` measured them."""
        self._on_step = on_step
        self._unreported: StepNote | None = None
        self._prefill_time = PrefillTime(step_times)

    def record_arrival(self, job: Job) -> None:
        """Record that a job has arrived, before anything else happens to it."""
        job.prefill_at_arrival = self._prefill_time.at_arrival(job.submitted)

    def make_part(self, job: Job, *, is_over: bool = False) -> bool:
        """Make a part of what a job has chosen, as `Job.make_part`."""
        return job.make_part(self._prefill_time.total, is_over=is_over)

    def record_step_time(self, batch: Batch, started: float, step_count: int) -> None:
        """Record that a step, or ``step_count`` steps of a run, ended now. The caller then calls
        `report_step`."""
        finished = time.monotonic()
        duration = finished - started
        token_count = sum([append.token_count for _, append in batch]) if step_count == 1 else len(batch)
        prompt_count = sum([append.prompt_count for _, append in batch])
        self._prefill_time.record_step_time(finished, duration, token_count, min(token_count, prompt_count))
        for job, _ in batch:
            timing = job.timing
            timing.started = timing.started or started
            timing.forward += duration
            timing.forward_count += step_count
            timing.step_token_count = token_count
        self._note(batch, started, duration, token_count, step_count)

    def report_step(self) -> None:
        """Pass the last step on to ``on_step``. The caller does so once the step's answers have
        left, because they need not wait for it."""
        if self._unreported is not None:
            self._on_step(self._unreported)
            self._unreported = None

    def _note(self, batch: Batch, started: float, seconds: float, token_count: int, step_count: int) -> None:
        self.report_step()  # the last step, if it was not reported yet
        labelled = [job for job, _ in batch if job.label]
        labels = tuple([job.label for job in labelled])
        note = StepNote(started, seconds, token_count, len(batch), step_count, labels)
        for job in labelled:
            job.timing.steps.add(note)
        self._unreported = note

    def record_end(self, job: Job) -> None:
        """Record that a job's answer leaves, or its error."""
        job.timing.finished = time.monotonic()
        job.timing.prefill += self._prefill_time.total - job.prefill_at_arrival
