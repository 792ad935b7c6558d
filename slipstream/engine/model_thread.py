"""The one thread that computes: takes jobs, batches what is ready into steps, tells who is done."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from slipstream.engine.engine import Append, Appended, Engine
from slipstream.engine.errors import OutOfPagesError, QueueFullError, StaleRoundError, UnknownHandleError
from slipstream.engine.gathering import Gathering
from slipstream.engine.job import Finished, Job
from slipstream.engine.prompts import PromptTime
from slipstream.engine.sequence import Sequence

log = logging.getLogger(__name__)

_FEW = 3
"""Tokens that take less time one by one than in a step of as many rows, which are padded."""


@dataclass(frozen=True, slots=True)
class Load:
    """A snapshot: jobs, sequences and pages. ``page_count == free + held + cached``."""

    running_count: int = 0
    waiting_count: int = 0
    sequence_count: int = 0
    page_count: int = 0
    free_page_count: int = 0
    held_page_count: int = 0
    cached_page_count: int = 0
    page_size: int = 0
    kv_byte_count: int = 0
    step_count: int = 0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much one step may hold, and how much may wait."""

    max_step_tokens: int = 512
    """Tokens in one forward, over all sequences."""
    prefill_chunk: int = 256
    """Tokens of one sequence in one forward: long prompts take turns with short rounds."""
    queue_limit: int = 1024
    """Unfinished jobs; one more is refused."""


class ModelThread:
    """Everything that touches the engine happens here, in order of arrival."""

    def __init__(self, load_engine: Callable[[], Engine], limits: BatchLimits, on_finished: Finished) -> None:
        """``load_engine`` runs on the new thread: a second thread that ever ran OpenMP regions would leave libgomp with
        more threads than cores, and it then sleeps between regions instead of spinning (a forward took 12 ms, not 8)."""
        self._load_engine = load_engine
        self._loaded: Future[None] = Future()
        self.engine: Engine  # set on the model thread before `start` returns
        self._limits = limits
        self._on_finished = on_finished
        self._inbox: list[Job | Callable[[], None]] = []
        self._unfinished_count = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._active: list[Job] = []
        self._gathering = Gathering()
        self._prompt_time = PromptTime()
        self._split: dict[Job, int] = {}
        """Of jobs that have split, how many parts have not ended."""
        self._sequences: OrderedDict[str, Sequence] = OrderedDict()  # least recently used first
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> Engine:
        """Load the engine and begin taking jobs; raises what loading raises."""
        self._thread.start()
        self._loaded.result()
        return self.engine

    @property
    def load(self) -> Load:
        """Jobs, sequences and pages as they are now. Callable from any thread: it only reads lengths."""
        engine, active = self.engine, self._active
        counts = engine.pool.counts()
        waiting = sum(job.timing.started is None for job in active)
        return Load(
            running_count=len(active) - waiting,
            waiting_count=waiting,
            sequence_count=len(self._sequences),
            page_count=counts.total,
            free_page_count=counts.free,
            held_page_count=counts.held,
            cached_page_count=counts.cached,
            page_size=engine.page_size,
            kv_byte_count=engine.kv_byte_count,
            step_count=engine.step_count,
        )

    def stop(self) -> None:
        """Finish the current step and end. Unfinished jobs are dropped."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a job. QueueFullError if too many are unfinished. Callable from any thread, as the next three are."""
        with self._wake:
            if self._unfinished_count >= self._limits.queue_limit:
                raise QueueFullError(f"{self._unfinished_count} items are in work or waiting")
            self._unfinished_count += 1
            self._inbox.append(job)
            self._wake.notify()

    def add(self, sequence: Sequence) -> None:
        """Know an open sequence."""
        self._call(lambda: self._sequences.update({sequence.handle: sequence}))

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, give its pages back and drop its job."""
        self._call(lambda: self._remove(sequence))

    def check(self) -> None:
        """Run the page accounting's self-check between two steps and wait for it; raises what it raises."""
        done = threading.Event()
        failures: list[AssertionError] = []

        def work() -> None:
            try:
                self.engine.pool.check()
            except AssertionError as error:
                failures.append(error)
            done.set()

        self._call(work)
        done.wait()
        if failures:
            raise failures[0]

    def _call(self, work: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(work)
            self._wake.notify()

    def _run(self) -> None:
        try:
            self.engine = self._load_engine()
            self._prompt_time = PromptTime(self.engine.step_times)
        except BaseException as error:
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(None)
        try:
            self._work()
        except BaseException:
            # A service that cannot compute must not look alive: end as on any SIGTERM, and be restarted.
            log.critical("the model thread failed; the service ends", exc_info=True)
            os.kill(os.getpid(), signal.SIGTERM)

    def _work(self) -> None:
        pause = 0.0
        while True:
            with self._wake:
                if pause:
                    self._wake.wait_for(lambda: self._stopping or self._inbox, pause)
                else:
                    self._wake.wait_for(lambda: self._stopping or self._inbox or self._active)
                if self._stopping:
                    return
                inbox, self._inbox = self._inbox, []
            ended = self._accept(inbox)
            pause = self._pause()
            if self._active and not pause:
                ended += self._step()
            if ended:
                with self._wake:
                    self._unfinished_count -= sum(job.parent is None for job, _ in ended)
                self._on_finished(ended)

    def _pause(self) -> float:
        """Seconds to wait for others before the next step; none for a draft's, which take many and join at any of them."""
        if all(job.drafting for job in self._active):
            return 0.0
        return self._gathering.wait(time.monotonic())

    def _accept(self, inbox: list[Job | Callable[[], None]]) -> list[tuple[Job, Exception | None]]:
        failed: list[tuple[Job, Exception | None]] = []
        for entry in inbox:
            if not isinstance(entry, Job):
                entry()
                continue
            entry.prompt_time = self._prompt_time.arrived(entry.timing.arrived)
            if entry.overtaken:  # before it could touch the sequence
                failed.append(self._end(entry, self._why_dropped(entry)))
                continue
            try:
                model = self.engine.model
                entry.begin(self.engine.cache, self.engine.context_length, model.vocabulary_size)
            except Exception as error:
                failed.append(self._end(entry, error))
                continue
            self._sequences.move_to_end(entry.sequence.handle)
            self._gathering.arrived(entry.sequence.handle, entry.timing.arrived)
            self._active.append(entry)
        return failed

    def _step(self) -> list[tuple[Job, Exception | None]]:
        """One forward over what fits; the jobs that ended with it."""
        ended: list[tuple[Job, Exception | None]] = []
        for job in [job for job in self._active if job.overtaken]:
            ended += self._drop(job, self._why_dropped(job))
        batch, starved = self._schedule()
        if not batch and starved is not None:
            pages = self.engine.pool.page_count
            ended += self._drop(starved, OutOfPagesError("all KV pages are in use", page_count=pages))
        if batch and self._may_run_on(batch):
            ended += self._run_on(batch)
        elif batch:
            ended += self._forward(batch)
        return ended

    def _may_run_on(self, batch: list[tuple[Job, Append]]) -> bool:
        """Whether there is nothing but one job with a few tokens, or the parts of one, each with one token."""
        if not self.engine.runs_on or len(batch) != len(self._active):
            return False
        parents = {job.parent for job, _ in batch}
        few = _FEW if len(batch) == 1 else 1
        if len(batch) > 1 and (len(parents) > 1 or None in parents):
            return False
        return all(job.steps_left > 1 and append.wanted == 1 and append.token_count <= few for job, append in batch)

    def _run_on(self, batch: list[tuple[Job, Append]]) -> list[tuple[Job, Exception | None]]:
        """Several steps in one go, until something else is asked of this thread."""
        started = time.monotonic()
        count = min(job.steps_left for job, _ in batch)
        try:
            answers = self.engine.run_on([append for _, append in batch], count, lambda: bool(self._inbox))
        except OutOfPagesError:
            return self._forward(batch)
        except Exception as error:
            log.exception("a forward failed; its %d items fail with it", len(batch))
            return [end for job, _ in batch for end in self._fail(job, error)]
        finished = time.monotonic()
        duration, step_count = finished - started, max(map(len, answers))
        self._prompt_time.stepped(finished, duration, len(batch))
        ended: list[tuple[Job, Exception | None]] = []
        for (job, append), choices in zip(batch, answers, strict=True):
            job.timing.started = job.timing.started or started
            job.timing.forward += duration
            job.timing.forward_count += step_count
            job.timing.step_token_count = len(batch)
            self._publish(job, append)
            for choice in choices:
                job.pending.clear()  # the engine has appended it
                if job.take(Appended([choice], [])):
                    ended += self._done(job)
                    break
        return ended

    def _why_dropped(self, job: Job) -> Exception:
        root = job if job.parent is None else job.parent
        if root.sequence.handle in self._sequences:
            return StaleRoundError("overtaken by a newer round")
        return UnknownHandleError(f"handle {root.sequence.handle!r} was closed while its round ran")

    def _drop(self, job: Job, error: Exception | None) -> list[tuple[Job, Exception | None]]:
        """Take a job that ends out of work: it, and with the last of its parts the job that has split."""
        self._active.remove(job)
        ended = [self._end(job, error)]
        parent = job.parent
        if parent is not None:
            self.engine.cache.release(job.sequence)
            self.engine.structures.forget(job.sequence)
            self._split[parent] -= 1
            if job.timing.forward_count >= parent.timing.forward_count:
                parent.timing.forward = job.timing.forward
                parent.timing.forward_count = job.timing.forward_count
                parent.timing.step_token_count = job.timing.step_token_count
            if not self._split[parent]:
                del self._split[parent]
                # A part that failed is a part less; but one that was overtaken says that all were.
                ended.append(self._end(parent, error if parent.overtaken else None))
        return ended

    def _done(self, job: Job) -> list[tuple[Job, Exception | None]]:
        """A job took its last choices: it ends, or goes on in parts."""
        parts = job.split(self.engine.cache)
        if not parts:
            return self._drop(job, None)
        self._active.remove(job)
        self._split[job] = len(parts)
        for part in parts:
            part.parent = job
            part.prompt_time = job.prompt_time
            part.timing.started = job.timing.started
            part.timing.forward = job.timing.forward
            part.timing.forward_count = job.timing.forward_count
        self._active.extend(parts)
        return []

    def _schedule(self) -> tuple[list[tuple[Job, Append]], Job | None]:
        """Short appends first, then prefill chunks, while tokens and pages last; and one job that found no page."""
        budget = self._limits.max_step_tokens
        batch: list[tuple[Job, Append]] = []
        starved = None
        for job in sorted(self._active, key=lambda job: len(job.pending) > self._limits.prefill_chunk):
            count = min(len(job.pending), self._limits.prefill_chunk, budget)
            if count == 0:
                break
            if not self._extend(job.sequence, job.pending[:count]):
                starved = job
                continue
            budget -= count
            batch.append((job, job.append(count)))
        return batch, starved

    def _extend(self, sequence: Sequence, tokens: list[int]) -> bool:
        """Give a sequence pages for its tokens, taking idle sequences' pages if need be: tokens are truth, KV is cache."""
        idle = None
        while True:
            try:
                self.engine.cache.extend(sequence, tokens)
                return True
            except OutOfPagesError:
                if idle is None:
                    busy = {job.sequence.handle for job in self._active}
                    idle = [s for handle, s in self._sequences.items() if handle not in busy and s.pages]
                    idle.reverse()
                if not idle:
                    return False
                self.engine.cache.release(idle.pop())

    def _forward(self, batch: list[tuple[Job, Append]]) -> list[tuple[Job, Exception | None]]:
        started = time.monotonic()
        try:
            answers = self.engine.step([append for _, append in batch])
        except Exception as error:
            log.exception("a forward failed; its %d items fail with it", len(batch))
            return [end for job, _ in batch for end in self._fail(job, error)]
        finished = time.monotonic()
        duration = finished - started
        self._gathering.stepped(duration)
        token_count = sum(append.token_count for _, append in batch)
        prompt_count = sum(append.prompt_count for _, append in batch)
        self._prompt_time.stepped(finished, duration, token_count, prompt_count)
        ended: list[tuple[Job, Exception | None]] = []
        for (job, append), answer in zip(batch, answers, strict=True):
            job.timing.started = job.timing.started or started
            job.timing.forward += duration
            job.timing.forward_count += 1
            job.timing.step_token_count = token_count
            self._publish(job, append)
            if answer.error is not None:
                ended += self._drop(job, answer.error)
            elif job.take(answer):
                ended += self._done(job)
                if not job.drafting:
                    self._gathering.answered(job.sequence.handle, finished)
        return ended

    def _publish(self, job: Job, append: Append) -> None:
        committed = min(len(append.sequence), job.statement.committed_length)
        self.engine.cache.publish(append.sequence, committed)

    def _fail(self, job: Job, error: Exception) -> list[tuple[Job, Exception | None]]:
        # What the forward wrote is unknown: the sequence forgets it all and is prefilled anew.
        self.engine.cache.release(job.sequence)
        return self._drop(job, error)

    def _remove(self, sequence: Sequence) -> None:
        for job in (*self._active, *self._split):
            if job.sequence is sequence:
                job.overtake()
        self._sequences.pop(sequence.handle, None)
        self._gathering.forget(sequence.handle)
        self.engine.structures.forget(sequence)
        self.engine.cache.release(sequence)

    def _end(self, job: Job, error: Exception | None) -> tuple[Job, Exception | None]:
        job.timing.finished = time.monotonic()
        job.timing.prefill = self._prompt_time.sum - job.prompt_time
        return job, error
