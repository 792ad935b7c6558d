"""The hints that the next step verifies, and the runs that wait for one instead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from slipstream.engine.head_work import HeadWork, Verified
from slipstream.engine.hinting.calibration import Calibration
from slipstream.engine.hinting.hints import Candidate
from slipstream.engine.hinting.holding import Habit, divide
from slipstream.engine.hinting.selection import Offer, equal_counts, select
from slipstream.engine.job import Job
from slipstream.engine.run_job import RunJob
from slipstream.engine.schedule import BatchLimits, prompt_share
from slipstream.step_times import StepTimes

_SHORTEST_WAIT = 1e-4
"""Seconds: a thread hardly sleeps for less."""


class HintScheduler:
    """Chooses hints for all runs of an engine by one curve of step times and one calibration. It
    belongs to the model thread."""

    def __init__(
        self,
        limits: BatchLimits,
        profile: Sequence[tuple[int, float]],
        row_multiple: int,
        *,
        pads_sequences: bool = False,
        heads: HeadWork | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``profile`` as `slipstream.engine.engine.Engine.profile` measured it; without one each
        hint is verified. ``row_multiple`` and ``pads_sequences`` are the backend's. ``heads`` have
        guessed before each step."""
        self._limits = limits
        self._least_window = row_multiple if pads_sequences else 0
        """Fewest rows of a run, if windows of different lengths are forwards of their own."""
        self._clock = clock
        self.calibration = Calibration()
        self._habit = Habit()
        self.times = StepTimes(profile or [(1, 1.0)], row_multiple)
        self._plain_times = StepTimes(profile or [(1, 1.0)], row_multiple)
        """Times of steps that followed one another in one call."""
        self._heads = heads or HeadWork(None, 0.0)
        self._last_end = 0.0

    def admit(self, job: Job) -> None:
        """Take in a job that begins."""
        if isinstance(job, RunJob) and job.hints is not None:
            job.hints.bind(self.calibration, self._habit)
            self._heads.admit(job.hints)

    def prepare(self, active: Sequence[Job]) -> tuple[list[Job], float]:
        """Give runs the hint tokens that the next step verifies.

        Returns the jobs that take part in it, and, if none does, the seconds after which to look
        again.
        """
        ready = [job for job in active if isinstance(job, RunJob) and self._may_take_hint(job)]
        if not ready:
            return [*active], 0.0
        now = self._clock()
        found: dict[Job, tuple[Candidate, Offer]] = {
            job: best for job in ready if (best := job.best_hint()) is not None
        }
        stepping, again = [*active], 0.0
        if any(job.may_be_held for job in ready):
            plain_rate = 1 / self.times.seconds(len(active))
            holds = [partial(_hold, job, found.get(job), plain_rate, now) for job in active]
            indices, again = divide(holds, self.times.seconds)
            if not indices:
                return [], max(_SHORTEST_WAIT, again - now)
            stepping = [active[index] for index in indices]
        offered = [job for job in stepping if isinstance(job, RunJob) and job in found]
        used: dict[Job, Verified] = {}
        if offered:
            counts = self._select([found[job][1] for job in offered], stepping)
            for job, count in zip(offered, counts, strict=True):
                candidate, offer = found[job]
                count = min(count, self._limits.prefill_chunk - len(job.pending))
                job.take_hint(candidate.tokens[:count], candidate.hint.source, candidate.hint.source_id)
                used[job] = Verified(candidate.hint.source, offer.survivals[:count])
        self._heads.record_use(stepping, used, self.times, self._plain_times)
        return stepping, 0.0

    def _may_take_hint(self, job: RunJob) -> bool:
        """Return whether the next step may verify a hint of a job: the rest of its prompt fits into
        it too. A prompt has no window of equal length."""
        has_room = job.has_begun_choosing or (not self._least_window and len(job.pending) < self._limits.prefill_chunk)
        return has_room and job.may_take_hint

    def _select(self, offers: list[Offer], stepping: Sequence[Job]) -> list[int]:
        if self._least_window and len(stepping) > 1:
            most = self._limits.max_step_tokens // len(stepping) - 1
            return equal_counts(offers, len(stepping), self._least_window, most, self.times)
        prompts = sum([len(job.pending) for job in stepping if job.is_prompt])
        others = [len(job.pending) for job in stepping if not job.is_prompt]
        run_count = sum([count == 1 for count in others])
        other_rows = sum(others) - run_count + prompt_share(prompts, self._limits)
        beside = self._heads.seconds()
        return select(offers, run_count, other_rows, self._limits.max_step_tokens, self.times, beside).counts

    def steps_within(self, seconds: float, row_count: int) -> int:
        """Return how many steps of ``row_count`` rows are expected to end in time, at least one."""
        return max(1, int(seconds / self.times.seconds(row_count)))

    def record_step(self, row_count: int, started: float, step_count: int, *, with_prompt: bool) -> None:
        """Record a step of ``row_count`` rows, or each of several, that ended now. The time since
        the step before counts too if the thread has not waited meanwhile."""
        now = self._clock()
        begun = self._last_end or started
        self._last_end = now
        if not with_prompt:
            self.times.record(row_count, (now - begun) / step_count)
        if step_count > 1:
            self._plain_times.record(row_count, (now - begun) / step_count)

    def skip(self, seconds: float) -> None:
        """Leave so many seconds before the next step out of its time."""
        if self._last_end:
            self._last_end += seconds

    def record_wait(self) -> None:
        """Record that the thread waits."""
        self._last_end = 0.0


def _hold(
    job: Job, found: tuple[Candidate, Offer] | None, plain_rate: float, now: float, others_step: float | None
) -> float | None:
    """Return the time until which a job waits for a hint; None if it steps now."""
    if not (isinstance(job, RunJob) and job.may_take_hint and job.may_be_held):
        return None
    return job.held_until(found, others_step, plain_rate, now)
