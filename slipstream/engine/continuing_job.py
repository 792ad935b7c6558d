"""A job that goes on without being asked for each answer.

::

    start --> the tail is read --> a step, a step .. --> it is over
                                    |            ^
                        nothing     |            | the caller
                        to do       v            | tells it something
                                    paused: the engine has no job
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.engine.job import Job, JobTiming


class _Told(NamedTuple):
    """Sums of a job's timing up to its last part."""

    at: float
    forward: float = 0.0
    forward_count: int = 0
    prefill: float = 0.0


class ContinuingJob(Job):
    """Job that tells its results in parts, and that may pause between two steps.

    The model thread advances it and makes parts. The event loop takes them, and tells it what the
    caller says.
    """

    _resumed: float | None = None
    """Time at which the last pause ended."""

    _told: _Told | None = None
    """Sums at the last part, or at the end of a pause after it. None before the first part."""

    is_told = False
    """True once a part was made."""

    @property
    def submitted(self) -> float:
        """Time at which the job was last given to the model thread."""
        return self._resumed or self.timing.arrived

    @property
    def is_over(self) -> bool:
        """True if it will never choose again."""
        raise NotImplementedError

    @property
    def is_paused(self) -> bool:
        """True if it has nothing to do before the caller tells it something."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the job after the current step."""
        raise NotImplementedError

    def learn(self) -> None:
        """Take in what the caller has said during a pause. The event loop calls it."""

    def resume(self) -> None:
        """Prepare to go on after a pause, whose time is in no part."""
        self.begin_again()
        self._resumed = time.monotonic()
        self._told = self._last_told._replace(at=self._resumed)

    @property
    def _last_told(self) -> _Told:
        return self._told or _Told(self.timing.arrived)

    def seconds_since_told(self) -> float:
        """Return the seconds since the last part, or since the job came."""
        return time.monotonic() - self._last_told.at

    def times_to_tell(self, prefill_total: float) -> JobTiming:
        """Return the times since the part before, for a part that is made now."""
        now, timing, told = time.monotonic(), self.timing, self._last_told
        forward = timing.forward - told.forward
        self._told, self.is_told = _Told(now, timing.forward, timing.forward_count, prefill_total), True
        return JobTiming(
            arrived=told.at,
            started=max(told.at, now - forward),
            forward=forward,
            forward_count=timing.forward_count - told.forward_count,
            step_token_count=timing.step_token_count,
            prefill=prefill_total - max(told.prefill, self.prefill_at_arrival),
            finished=now,
        )


def sum_times(timings: Sequence[JobTiming]) -> JobTiming:
    """Return the times of consecutive parts together; no time at all if there is none."""
    if len(timings) == 1:
        return timings[0]
    if not timings:
        timing = JobTiming()
        timing.finished = timing.started = timing.arrived
        return timing
    forward = sum(timing.forward for timing in timings)
    return JobTiming(
        arrived=timings[0].arrived,
        started=max(timings[0].arrived, timings[-1].finished - forward),
        forward=forward,
        forward_count=sum(timing.forward_count for timing in timings),
        step_token_count=timings[-1].step_token_count,
        prefill=sum(timing.prefill for timing in timings),
        finished=timings[-1].finished,
    )
