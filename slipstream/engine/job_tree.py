"""The jobs in work: those that append to their sequences, those that wait for pages, and those that
have split and end with their last part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from slipstream.engine.job import Ended, Job
from slipstream.engine.sequence import Sequence, SequenceCache


class JobTree:
    """Parents and parts. A method that ends jobs returns them as a list, each with its error if it
    failed."""

    def __init__(self, cache: SequenceCache, release: Callable[[Sequence], None]) -> None:
        """``release`` gets the fork of a part that has ended."""
        self.active: list[Job] = []
        """Jobs in order of arrival. Those that found no place in the last step come before those
        that did."""
        self.without_pages: list[Job] = []
        """Jobs that have given their pages to others, in the order in which they go on."""
        self._numbers: dict[Job, int] = {}
        """Number of each job in work, in order of arrival."""
        self._last_number = 0
        self._cache = cache
        self._release = release
        self._part_counts: dict[Job, int] = {}
        """Number of unfinished parts of each job that has split."""

    def add(self, job: Job) -> None:
        """Add a job that begins, or that goes on with pages again."""
        self.active.append(job)
        if job not in self._numbers:
            self._last_number += 1
            self._numbers[job] = self._last_number

    @property
    def jobs(self) -> list[Job]:
        """All jobs that append to their sequences, now or once they have pages again."""
        return [*self.active, *self.without_pages]

    def preempt(self, job: Job) -> None:
        """Take an active job's pages. It goes on later, after those that began before it."""
        self.active.remove(job)
        job.leave()
        self._cache.release(job.sequence)
        job.begin_again()
        self.without_pages.append(job)
        self.without_pages.sort(key=self._numbers.__getitem__)

    def newest_to_preempt(self) -> Job | None:
        """Return the active job that began last, of those that may give their pages away."""
        jobs = [job for job in self.active if job.may_restart]
        return max(jobs, key=self._numbers.__getitem__, default=None)

    def oldest_first(self, jobs: Iterable[Job]) -> list[Job]:
        """Return jobs in the order in which they began."""
        return sorted(jobs, key=self._number)

    def is_oldest(self, job: Job) -> bool:
        """True if a job began before all that are active."""
        return all(self.is_older(job, other) for other in self.active)

    def is_older(self, job: Job, other: Job) -> bool:
        """True if a job began before another one."""
        return self._number(job) < self._number(other)

    def _number(self, job: Job) -> int:
        return self._numbers[job.root]

    def rotate(self, served: Set[Job]) -> None:
        """Put the rounds and runs that were in a step behind those that found no place in it. A
        draft's branches keep their order: the likeliest come first."""
        if len(served) < len(self.active):
            self.active.sort(key=lambda job: job in served and not (job.is_prompt or job.drafting))

    def overtake(self, sequence: Sequence) -> None:
        """Drop all jobs of a sequence at the next step."""
        for job in (*self.jobs, *self._part_counts):
            if job.sequence.root is sequence:
                job.overtake()

    def drop_job(self, job: Job, error: Exception | None) -> list[Ended]:
        """Remove a job that ends and, with its last part, the job that has split."""
        (self.active if job in self.active else self.without_pages).remove(job)
        job.leave()
        ended: list[Ended] = [(job, error)]
        parent = job.parent
        if parent is None:
            del self._numbers[job]
            return ended
        self._release(job.sequence)
        parent.timing.merge(job.timing)
        self._part_counts[parent] -= 1
        if not self._part_counts[parent]:
            del self._part_counts[parent], self._numbers[parent]
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
