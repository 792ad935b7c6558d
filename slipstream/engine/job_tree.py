"""Jobs in work: those that append to their sequences, and those that have split and end with the
last of their parts."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.engine.job import Ended, Job
from slipstream.engine.sequence import Sequence, SequenceCache


class JobTree:
    """Parents and parts. What ends is told by the methods that end it: a list of jobs, each with
    its error if it failed."""

    def __init__(self, cache: SequenceCache, release: Callable[[Sequence], None]) -> None:
        """``release`` takes the fork of a part that has ended."""
        self.active: list[Job] = []
        """In order of arrival."""
        self._cache = cache
        self._release = release
        self._part_counts: dict[Job, int] = {}
        """Of jobs that have split, how many parts have not ended."""

    def add(self, job: Job) -> None:
        """A job begins."""
        self.active.append(job)

    def overtake(self, sequence: Sequence) -> None:
        """Nobody waits for a sequence's jobs any more."""
        for job in (*self.active, *self._part_counts):
            if job.sequence is sequence:
                job.overtake()

    def drop_job(self, job: Job, error: Exception | None) -> list[Ended]:
        """Take a job that ends out of work: it, and with the last of its parts the job that has
        split."""
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
            # A part that failed is a part less; but one that was overtaken says that all were.
            ended.append((parent, error if parent.overtaken else None))
        return ended

    def finish_job(self, job: Job) -> list[Ended]:
        """A job took its last choices: it ends, or goes on in parts."""
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
