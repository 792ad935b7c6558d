"""The worker of a stock engine: one task for each job, on an event loop in a thread of its own. The
server batches what runs at the same time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial

import uvloop

from slipstream.engine.errors import ModelThreadFailedError, QueueFullError, StaleRoundError, UnknownHandleError
from slipstream.engine.hinting.hints import Hint
from slipstream.engine.job import Finished, Job
from slipstream.engine.load import Load
from slipstream.engine.run_job import RunJob
from slipstream.engine.sequence import Sequence
from slipstream.engine.worker import OnParts
from slipstream.errors import SlipstreamError
from slipstream.hashed import hashed
from slipstream.sampling.partial.refused import refused_fields
from slipstream.step_times import StepTimes
from slipstream.stock.protocol import SamplingUnsupportedError
from slipstream.stock.served import StockServed
from slipstream.stock.steps import StockSteps

log = logging.getLogger(__name__)

Start = Callable[[], Awaitable[StockSteps]]
"""Connects to the server."""


class StockThread:
    """The tasks of all jobs. `slipstream.engine.worker.Worker` says what the methods do."""

    def __init__(self, start: Start, queue_limit: int, on_finished: Finished, on_parts: OnParts) -> None:
        """``start`` runs on the new thread's loop."""
        self._connect = start
        self._queue_limit = queue_limit
        self._on_finished = on_finished
        self._on_parts = on_parts
        self._loop = uvloop.new_event_loop()
        self._started: Future[None] = Future()
        self._steps: StockSteps  # set on the thread before `start` returns
        self._stopping = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        self._last: dict[Sequence, asyncio.Task[None]] = {}
        """The task of each sequence's last job, until it ends."""
        self._open: set[Sequence] = set()
        self.failure: ModelThreadFailedError | None = None
        self._unfinished_count = 0
        self._lock = threading.Lock()
        """Guards the number of unfinished jobs."""
        self._thread = threading.Thread(target=self._run, name="stock-engine", daemon=True)

    def start(self) -> StockServed:
        self._thread.start()
        self._started.result()
        return self.served

    def abandon(self) -> None:
        self._started.cancel()
        self._call(lambda: self._working is not None and self._working.cancel())

    @property
    def served(self) -> StockServed:
        return self._steps.served

    @property
    def load(self) -> Load:
        return Load(
            running_count=len(self._tasks),
            sequence_count=len(self._open),
            step_count=self._steps.step_count,
            page_size=1,
        )

    @property
    def step_times(self) -> StepTimes:
        return self._steps.hinting.times

    def stop(self) -> None:
        self._call(self._stopping.set)
        self._thread.join()

    def submit(self, job: Job) -> None:
        if refused := refused_fields(job.rule):
            raise SamplingUnsupportedError(refused)
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if self._unfinished_count >= self._queue_limit:
                raise QueueFullError(f"{self._unfinished_count} items run already")
            self._unfinished_count += 1
        self._call(partial(self._admit, job))

    def notice(self) -> None:
        self._call(self._look)

    def add_hint(self, run: RunJob, hint: Hint) -> None:
        if run.offer_hint(hint):
            self._call(partial(self._steps.add_hint, run))

    def add_sequence(self, sequence: Sequence) -> None:
        self._call(partial(self._open.add, sequence))

    def remove_sequence(self, sequence: Sequence) -> None:
        self._call(partial(self._remove, sequence))

    def _call(self, entry: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(entry)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._working = self._loop.create_task(self._work())
            self._loop.run_until_complete(self._working)
        finally:
            self._loop.close()

    async def _work(self) -> None:
        try:
            self._steps = await self._connect()
        except BaseException as error:
            with suppress(InvalidStateError):  # no caller waits: the process is about to end
                self._started.set_exception(error)
            return
        with suppress(InvalidStateError):
            self._started.set_result(None)
        await self._stopping.wait()
        with self._lock:
            self.failure = ModelThreadFailedError("the service ends")
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._steps.server.close()
        self.failure = None

    def _admit(self, job: Job) -> None:
        self._look()  # the job before it on the sequence is overtaken
        task = self._loop.create_task(self._compute(job, self._last.get(job.sequence)))
        self._tasks[job] = self._last[job.sequence] = task
        task.add_done_callback(partial(self._end, job))

    async def _compute(self, job: Job, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        if not (job.overtaken or job.withdrawn):
            await self._steps.run(job, self._on_parts)

    def _look(self) -> None:
        """End the jobs that no caller waits for any more, and let the others catch up."""
        for job, task in self._tasks.items():
            job.catch_up()
            if job.overtaken or job.withdrawn:
                task.cancel()

    def _end(self, job: Job, task: asyncio.Task[None]) -> None:
        del self._tasks[job]
        if self._last.get(job.sequence) is task:
            del self._last[job.sequence]
        self._steps.end(job)
        with self._lock:
            self._unfinished_count -= 1
        self._on_finished([(job, self._error_of(job, task))])

    def _error_of(self, job: Job, task: asyncio.Task[None]) -> Exception | None:
        if job.overtaken:
            if job.sequence in self._open:
                return StaleRoundError("overtaken by a newer round")
            return UnknownHandleError("this handle was closed while its round ran")
        if task.cancelled():
            return None if job.withdrawn else ModelThreadFailedError("the service ends")
        error = task.exception()
        if error is None or isinstance(error, SlipstreamError):
            return error
        log.error("an item of handle %s failed", hashed(job.sequence.handle), exc_info=error)
        return error if isinstance(error, Exception) else ModelThreadFailedError(repr(error))

    def _remove(self, sequence: Sequence) -> None:
        self._open.discard(sequence)
        for job in self._tasks:
            if job.sequence is sequence:
                job.overtake()
        self._look()
        if (last := self._last.get(sequence)) is None:
            self._steps.forget(sequence)
        else:
            last.add_done_callback(lambda _: self._steps.forget(sequence))
