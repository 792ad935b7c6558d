"""The one thread that computes: it takes jobs, batches what is ready into steps, and reports which
jobs are done.

An error of a job ends that job alone. An error of the engine outside a job ends the thread, and the
service with it.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from slipstream.engine.engine import Append, Appended, Engine
from slipstream.engine.errors import (
    ModelThreadFailedError,
    OutOfPagesError,
    QueueFullError,
    StaleRoundError,
    UnknownHandleError,
)
from slipstream.engine.head_work import HeadWork
from slipstream.engine.hint_scheduler import HintScheduler
from slipstream.engine.hinting.hints import Hint
from slipstream.engine.inbox import Entry, Inbox
from slipstream.engine.job import Ended, Finished, Job
from slipstream.engine.job_tree import JobTree
from slipstream.engine.load import Load
from slipstream.engine.open_sequences import OpenSequences
from slipstream.engine.run_job import PART_SECONDS, RunJob
from slipstream.engine.schedule import BatchLimits, Want, schedule
from slipstream.engine.sequence import Sequence
from slipstream.engine.step_clock import StepClock
from slipstream.engine.step_note import OnStep
from slipstream.engine.step_waits import StepWaits
from slipstream.hashed import hashed
from slipstream.step_times import StepTimes

log = logging.getLogger(__name__)

_MOST_FAILURES = 3
"""Forwards of several jobs that may fail with a job before it ends with them."""


class ModelThread:
    """The thread on which everything that touches the engine happens, in order of arrival."""

    def __init__(
        self,
        load_engine: Callable[[], Engine],
        limits: BatchLimits,
        on_finished: Finished,
        on_parts: Callable[[list[Job]], None] = lambda _: None,
        on_step: OnStep = lambda _: None,
    ) -> None:
        """``load_engine`` runs on the new thread. If a second thread had ever run OpenMP regions,
        libgomp would have more threads than cores. It would then sleep between regions instead of
        spin: a forward took 12 ms instead of 8."""
        self._load_engine = load_engine
        self._loaded: Future[None] = Future()
        self.engine: Engine  # these five are set on the model thread before `start` returns
        self._tree: JobTree
        self._clock: StepClock
        self.heads: HeadWork
        self._hinting: HintScheduler
        self.failure: ModelThreadFailedError | None = None
        """The reason why this thread can no longer compute."""
        self._limits = limits
        self._on_finished = on_finished
        self._on_parts = on_parts
        self._on_step = on_step
        self._inbox = Inbox()
        self._unfinished: set[Job] = set()
        """Submitted jobs whose ends were not reported yet."""
        self._lock = threading.Lock()
        """Guards the set of unfinished jobs."""
        self._stopping = False
        self._open_sequences = OpenSequences()
        self._suspects: set[Job] = set()
        """Jobs of a forward that failed. Each steps alone until it has chosen."""
        self._waits = StepWaits()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> Engine:
        """Load the engine and begin to accept jobs. Raises what loading raises."""
        self._thread.start()
        self._loaded.result()
        return self.engine

    def abandon(self) -> None:
        """End the wait of `start` in another thread. The model goes on loading: it ends with the
        process."""
        self._loaded.cancel()

    @property
    def served(self) -> Engine:
        """The engine, once `start` has returned."""
        return self.engine

    @property
    def load(self) -> Load:
        """Jobs, sequences and pages as they are now. Any thread may read it: it only reads
        lengths."""
        engine, items = self.engine, {*self._tree.jobs}
        counts, waits = engine.pool.counts(), self._waits.summary(items)
        return Load(
            running_count=len(items) - waits.count,
            waiting_count=waits.count,
            waits=waits,
            sequence_count=len(self._open_sequences),
            page_count=counts.total,
            free_page_count=counts.free,
            held_page_count=counts.held,
            cached_page_count=counts.cached,
            page_size=engine.page_size,
            kv_byte_count=engine.kv_byte_count,
            step_count=engine.step_count,
            preempted_count=self._open_sequences.preempted_count,
            guess_count=self.heads.guess_count,
            guess_seconds=self.heads.guess_seconds,
        )

    @property
    def step_times(self) -> StepTimes:
        """The times of recent steps. They belong to this thread."""
        return self._hinting.times

    def stop(self) -> None:
        """Finish the current step and end. Unfinished jobs are dropped."""
        self._stopping = True
        self._inbox.wake()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a job. QueueFullError if too many are unfinished, ModelThreadFailedError if the
        thread has ended.

        Any thread may call this and the next four methods.
        """
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if len(self._unfinished) >= self._limits.queue_limit:
                waiting = sum(each.timing.started is None for each in self._unfinished)
                if waiting >= self._limits.queue_limit:
                    raise QueueFullError(f"{waiting} items are waiting")
            self._unfinished.add(job)
        self._put(job)

    def notice(self) -> None:
        """Have the thread look at its jobs soon: one of them is withdrawn."""
        self._put(lambda: None)

    def add_hint(self, run: RunJob, hint: Hint) -> None:
        """Let a run's next steps use a hint."""
        if run.offer_hint(hint):
            self._put(run.take_hints)

    def add_sequence(self, sequence: Sequence) -> None:
        """Add a sequence that was opened."""
        self._put(lambda: self._open_sequences.add(sequence))

    def remove_sequence(self, sequence: Sequence) -> None:
        """Remove a sequence, release its pages and drop its job."""
        self._put(lambda: self._remove(sequence))

    def _put(self, entry: Entry) -> None:
        self._inbox.put(entry)
        self._inbox.wake()

    def _run(self) -> None:
        try:
            self.engine = self._load_engine()
            self._tree = JobTree(self.engine.cache)
            self._clock = StepClock(self.engine.step_times, self._on_step)
            backend = self.engine.backend
            self.heads = HeadWork(self.engine.heads, self.engine.head_seconds)
            self._hinting = HintScheduler(
                self._limits,
                self.engine.step_times,
                backend.row_multiple,
                pads_sequences=backend.pads_sequences,
                heads=self.heads,
            )
        except BaseException as error:
            with suppress(InvalidStateError):  # no caller waits: the process is about to end
                self._loaded.set_exception(error)
            return
        with suppress(InvalidStateError):
            self._loaded.set_result(None)
        try:
            self._work()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Fail all jobs and end the service as on SIGTERM. No caller may wait for an answer that
        never comes, and a service that cannot compute must not look alive."""
        log.critical("the model thread failed; the service ends", exc_info=error)
        self._fail_everything(error)
        os.kill(os.getpid(), signal.SIGTERM)

    def _fail_everything(self, error: BaseException) -> None:
        with self._lock:
            self.failure = ModelThreadFailedError(f"the model can no longer compute: {error!r}")
            unfinished, self._unfinished = self._unfinished, set()
        self._on_finished([(job, self.failure) for job in unfinished])

    def _work(self) -> None:
        pause = 0.0
        while True:
            if pause or not self._tree.jobs:
                self._hinting.record_wait()
                self._inbox.wait(pause or None)
            if self._stopping:
                return
            pause = self._run_once()

    def _run_once(self) -> float:
        """Take the queued entries, and a step if there is work. Returns the seconds that the next
        step should wait."""
        ended = self._accept(self._inbox.drain())
        ended += self._drop_withdrawn()
        ended += self._readmit()
        pause = 0.0
        if self._tree.active:
            alone = next((job for job in self._tree.active if job in self._suspects), None)
            stepping, pause = self._hinting.prepare(self._tree.active) if alone is None else ([alone], 0.0)
            ended += self._step(stepping)
            self._hinting.skip(self.heads.guess())
            if told := [job for job in self._tree.active if self._clock.make_part(job)]:
                self._on_parts(told)
        if ended:
            self._settle(ended)
            self._on_finished(ended)
        self._clock.report_step()
        return pause

    def _settle(self, ended: list[Ended]) -> None:
        """Record that these jobs have ended."""
        for job, _ in ended:
            self._suspects.discard(job)
            self._clock.make_part(job, is_over=True)
            self._clock.record_end(job)
        with self._lock:
            self._unfinished.difference_update(job for job, _ in ended)

    def _accept(self, came: list[Entry]) -> list[Ended]:
        failed: list[Ended] = []
        for entry in came:
            if not isinstance(entry, Job):
                entry()
                continue
            self._clock.record_arrival(entry)
            if entry.overtaken or entry.withdrawn:  # before it has touched the sequence
                failed.append((entry, self._why_dropped(entry) if entry.overtaken else None))
                continue
            try:
                entry.begin(self.engine.cache, self.engine.context_length, self.engine.model.vocabulary_size)
            except Exception as error:
                failed.append((entry, error))
                continue
            self._open_sequences.mark_used(entry.sequence)
            self._hinting.admit(entry)
            self._tree.add(entry)
        return failed

    def _drop_withdrawn(self) -> list[Ended]:
        """End the jobs that no caller waits for any more, and let the others catch up."""
        ended: list[Ended] = []
        for job in self._tree.jobs:
            if job.overtaken:
                ended += self._tree.drop_job(job, self._why_dropped(job))
                continue
            job.catch_up()
            if job.withdrawn:
                ended += self._tree.drop_job(job, None)
        return ended

    def _readmit(self) -> list[Ended]:
        """Let jobs that have lost their pages go on: the oldest first, if there is room for all of
        its tokens or it is the oldest of all. Others would take their pages from one another."""
        failed: list[Ended] = []
        while self._tree.without_pages:
            job = self._tree.without_pages[0]
            if self._tree.active and not self._tree.is_oldest(job) and not self._has_room(job):
                break
            self._tree.without_pages.pop(0)
            self._tree.add(job)
            try:
                job.begin(self.engine.cache, self.engine.context_length, self.engine.model.vocabulary_size)
            except Exception as error:
                failed += self._tree.drop_job(job, error)
        return failed

    def _has_room(self, job: Job) -> bool:
        counts = self.engine.pool.counts()
        return counts.free + counts.cached >= self.engine.cache.pages_for(job.length_limit)

    def _step(self, stepping: list[Job]) -> list[Ended]:
        """Run one forward over what fits of the ``stepping`` jobs, or a multi-step run over few.
        Returns the jobs that ended."""
        ended = self._drop_withdrawn()
        batch = self._batch([job for job in stepping if job in self._tree.active] if ended else [*stepping], ended)
        if not batch:
            return ended
        branches = self._branches(batch)
        count = 1 if branches else self._multi_step_count(batch)
        started, steps_before = time.monotonic(), self.engine.step_count
        try:
            answers = self.engine.steps([a for _, a in batch + branches], count, self._inbox.stop_flag)
        except Exception as error:
            return ended + self._find_culprit([job for job, _ in batch], error)
        self._suspects.difference_update([job for job, append in batch if append.wanted])
        step_count = self.engine.step_count - steps_before
        self._waits.end_step(time.monotonic() - started, step_count)
        self._clock.record_step_time(batch, started, step_count)
        self._record_rows(batch + branches, started, step_count)
        self.heads.record_step(batch, step_count)
        self._tree.rotate({job for job, _ in batch})
        for (job, append), taken in zip(branches, answers[len(batch) :], strict=True):
            job.record_branch(append, taken[0])
        for (job, append), taken in zip(batch, answers, strict=False):
            ended += self._record_answers(job, append, taken)
        return ended

    def _find_culprit(self, jobs: list[Job], error: Exception) -> list[Ended]:
        """Let the jobs of a forward that failed begin again, each alone, so that only the one that
        makes it fail ends. Those that cannot begin again end too."""
        log.error("a forward of %d items failed", len(jobs), exc_info=error)
        ended: list[Ended] = []
        for job in jobs:
            self.engine.discard(job.sequence)  # the pages' content is unknown; raises if the device is lost
            may_restart = len(jobs) > 1 and job.may_restart and job.failed_count < _MOST_FAILURES
            if job.forsake_hints() or may_restart:
                job.failed_count += 1
                self._suspects.add(job)
                self._tree.preempt(job)
            else:
                ended += self._tree.drop_job(job, error)
        return ended

    def _branches(self, batch: list[tuple[Job, Append]]) -> list[tuple[Job, Append]]:
        """Return what else the step appends, to forks of the drafting jobs' sequences."""
        rows, most = sum([append.token_count for _, append in batch]), self._limits.max_step_tokens
        found: list[tuple[Job, Append]] = []
        for job, append in batch:
            if job.drafting and rows < most:
                branches = job.append_branches(append, rows, most - rows)
                rows += sum([branch.token_count for branch in branches])
                found += [(job, branch) for branch in branches]
        return found

    def _record_rows(self, batch: list[tuple[Job, Append]], started: float, step_count: int) -> None:
        with_prompt = any(append.prompt_count for _, append in batch)
        rows = sum([append.token_count for _, append in batch]) if step_count == 1 else len(batch)
        self._hinting.record_step(rows, started, step_count, with_prompt=with_prompt)

    def _batch(self, active: list[Job], ended: list[Ended]) -> list[tuple[Job, Append]]:
        """Return the jobs of the next step, with their pages. Jobs that cannot run are added to
        ``ended``; if all jobs lack pages, one of them."""
        busy = {job.sequence.handle for job in self._tree.active}
        batch: list[tuple[Job, Append]] = []
        starved = None
        places = schedule([Want(len(job.pending), job.is_prompt) for job in active], self._limits)
        counts = {active[index]: count for index, count in places}
        for job in self._tree.oldest_first(counts):
            if job in self._tree.without_pages:  # it has given its pages to an older one
                continue
            count = self._find_room(job, counts[job], busy)
            if not count:
                starved = job
                continue
            try:
                batch.append((job, job.append(count)))
            except Exception as error:
                self.engine.discard(job.sequence)  # it has tokens that no forward will compute
                ended += self._tree.drop_job(job, error)
        self._waits.begin_step(active, counts, [job for job, _ in batch], self._tree)
        if not batch and starved is not None and starved in self._tree.active:
            pages = self.engine.pool.page_count
            ended += self._tree.drop_job(starved, OutOfPagesError("all KV pages are in use", page_count=pages))
        return batch

    def _find_room(self, job: Job, count: int, busy: set[str]) -> int:
        """Give a job pages for its next tokens, and return how many: if necessary those of idle
        sequences, and then those of the jobs that began last. Its hint gives way first. A job gives
        way to older ones, never to a newer one."""
        if count < len(job.pending) and job.drop_hint():
            count = min(count, len(job.pending))
        while not self._open_sequences.extend(self.engine.cache, job.sequence, job.pending[:count], busy):
            if job.drop_hint():
                count = min(count, len(job.pending))
                continue
            victim = self._tree.newest_to_preempt()
            if victim is None or victim is job or self._tree.is_older(victim, job):
                if job.may_restart and len(self._tree.active) > 1:
                    self._preempt(job)
                return 0
            self._preempt(victim)
        return count

    def _preempt(self, job: Job) -> None:
        if self._clock.make_part(job, is_over=True):  # it may not be in a step for long
            self._on_parts([job])
        self._tree.preempt(job)
        self._open_sequences.preempted_count += 1

    def _multi_step_count(self, batch: list[tuple[Job, Append]]) -> int:
        """Return how many steps to take before the queue is read again.

        It is above 1 only if every job is in the batch and chooses one token a step. Then no job
        waits longer than until the first one is done. A prompt's step stays alone, because its time
        is reported separately.
        """
        if not self.engine.multi_step or len(batch) != len(self._tree.active):
            return 1
        if any(append.wanted != 1 or append.prompt_count for _, append in batch):
            return 1
        if self.heads.wants_single_steps([job for job, _ in batch]):
            return 1
        most = min(job.steps_left for job, _ in batch)
        if not batch[0][0].drafting:
            most = min(most, self._hinting.steps_within(PART_SECONDS, len(batch)))
        return max(1, most)

    def _record_answers(self, job: Job, append: Append, answers: list[Appended]) -> list[Ended]:
        """Give a job the answers of its steps. The job ends, fails or continues."""
        self.engine.cache.publish(append.sequence, min(len(append.sequence), job.committed_length))
        for index, answer in enumerate(answers):
            if answer.error is not None:
                log.warning("an item of handle %s failed: %s", hashed(job.sequence.handle), answer.error)
                if job.forsake_hints():
                    self._tree.preempt(job)
                    return []
                return self._tree.drop_job(job, answer.error)
            if index:
                job.pending.clear()  # the engine has appended it
            try:
                is_done = job.record_step(answer)
            except Exception as error:
                return self._tree.drop_job(job, error)
            if is_done:
                self._settle_cache(job)
                return self._tree.drop_job(job, None)
        self._settle_cache(job)
        return []

    def _settle_cache(self, job: Job) -> None:
        """Drop what a step has put into the cache for hint tokens that were wrong."""
        settled = job.settled_length
        if settled is not None and settled < len(job.sequence):
            self.engine.cache.truncate(job.sequence, settled)

    def _why_dropped(self, job: Job) -> Exception:
        if job.sequence.root in self._open_sequences:
            return StaleRoundError("overtaken by a newer round")
        return UnknownHandleError("this handle was closed while its round ran")

    def _remove(self, sequence: Sequence) -> None:
        self._tree.overtake(sequence)
        self._open_sequences.remove(sequence)
        self.engine.release_sequence(sequence)
