"""The jobs in work: those that append to their sequences, and those that have split and end with
their last part."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.engine.job import Ended, Job
from slipstream.engine.sequence import Sequence, SequenceCache


class JobTree:
    """Parents and parts. A method that ends jobs returns them as a list, each with its error if it
    failed."""

    def __init__(self, cache: SequenceCache, release: Callable[[Sequence], None]) -> None:
        """``release`` gets the fork of a part that has ended."""
        self.active: list[Job] = []
        """Jobs in order of arrival."""
        self._cache = cache
        self._release = release
        self._part_counts: dict[Job, int] = {}
        """Number of unfinished parts of each job that has split."""

    def add(self, job: Job) -> None:
        """Add a job that begins."""
        self.active.append(job)

    def overtake(self, sequence: Sequence) -> None:
        """Drop all jobs of a sequence at the next step."""
        for job in (*self.active, *self._part_counts):
            if job.sequence is sequence:
                job.overtake()

    def drop_job(self, job: Job, error: Exception | None) -> list[Ended]:
        """Remove a job that ends and, with its last part, the job that has split."""
        self.active.remove(job)
        ended: list[Ended] = [(job, error)]
        parent = job.parent
        if parent is None:
            return ended
        self._release(job.sequence)
        parent.timing.merge(job.timing)
        self._part_counts[parent] -= 1
        if not self._part_counts[parent]:
            del self._part_counts[parent]
            # A failed part is only one part less. But if one part was overtaken, all were.
            ended.append((parent, error if parent.overtaken else None))
        return ended

    def finish_job(self, job: Job) -> list[Ended]:
        """End a job that has its last choices, or continue it in parts."""
        forks: list[Sequence] = []

        def fork(name: str, length: int) -> Sequence:
            forks.append(self._cache.fork(job.sequence, f"{job.sequence.handle}/{name}"))
            self._cache.truncate(forks[-1], length)
            return forks[-1]

        try:
            parts = job.split(fork)
        except Exception as error:
            for made in forks:
                self._release(made)
            return self.drop_job(job, error)
        if not parts:
            return self.drop_job(job, None)
        self.active.remove(job)
        self._part_counts[job] = len(parts)
        for part in parts:
            part.parent = job
            part.prefill_at_arrival = job.prefill_at_arrival
            part.timing.started = job.timing.started
            part.timing.forward = job.timing.forward
            part.timing.forward_count = job.timing.forward_count
        self.active.extend(parts)
        return []
