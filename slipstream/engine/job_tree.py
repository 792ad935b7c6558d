"""The jobs in work: those that append to their sequences, and those that wait for pages."""

from __future__ import annotations

from collections.abc import Iterable, Set

from slipstream.engine.job import Ended, Job
from slipstream.engine.sequence import Sequence, SequenceCache


class JobTree:
    """All jobs in work. A method that ends jobs returns them as a list, each with its error if it
    failed."""

    def __init__(self, cache: SequenceCache) -> None:
        self.active: list[Job] = []
        """Jobs in order of arrival. Those that found no place in the last step come before those
        that did."""
        self.without_pages: list[Job] = []
        """Jobs that have given their pages to others, in the order in which they go on."""
        self._numbers: dict[Job, int] = {}
        """Number of each job in work, in order of arrival."""
        self._last_number = 0
        self._cache = cache

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
        return self._numbers[job]

    def rotate(self, served: Set[Job]) -> None:
        """Put the rounds and runs that were in a step behind those that found no place in it."""
        if len(served) < len(self.active):
            self.active.sort(key=lambda job: job in served and not job.is_prompt)

    def overtake(self, sequence: Sequence) -> None:
        """Drop all jobs of a sequence at the next step."""
        for job in self.jobs:
            if job.sequence.root is sequence:
                job.overtake()

    def drop_job(self, job: Job, error: Exception | None) -> list[Ended]:
        """Remove a job that ends."""
        (self.active if job in self.active else self.without_pages).remove(job)
        job.leave()
        del self._numbers[job]
        return [(job, error)]
