"""The engine as an event loop sees it: open and close handles, run rounds, read the load. Nothing
here computes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from slipstream.engine.continuing_job import ContinuingJob
from slipstream.engine.engine import Engine
from slipstream.engine.errors import (
    ModelThreadFailedError,
    QueueFullError,
    RoundConflictError,
    SequenceLimitError,
    StaleRoundError,
    UnknownHandleError,
)
from slipstream.engine.hinting.hints import Hint
from slipstream.engine.job import Finished, Job
from slipstream.engine.leases import Leases
from slipstream.engine.load import Load
from slipstream.engine.model_thread import ModelThread
from slipstream.engine.owners import Owners
from slipstream.engine.run_job import RunJob
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import Sequence
from slipstream.engine.step_note import OnStep
from slipstream.engine.worker import MakeWorker, OnParts, Served
from slipstream.hashed import hashed
from slipstream.sampling.compiled_structure import Compiled
from slipstream.sampling.rule import SamplingRule
from slipstream.step_times import StepTimes
from slipstream.structures.trials import StructureTrials

log = logging.getLogger(__name__)

_CLOSED_COUNT = 10_000
"""Handles that are remembered as closed. A handle may be closed before the item arrives that would
have opened it."""

JobT = TypeVar("JobT", bound=Job)
JobT_contra = TypeVar("JobT_contra", bound=Job, contravariant=True)


class Listener(Protocol[JobT_contra]):
    """The receiver of a round's result, called on the event loop. An error that it raises on parts
    or on an answer is reported to it as the round's failure."""

    def parts_done(self, parts: list[Job]) -> None:
        """Receive jobs that have made parts and go on."""

    def done(self, job: JobT_contra) -> None:
        """Receive the job that has the round's answer."""

    def failed(self, error: Exception) -> None:
        """Receive the error of a round that has no answer."""

    def repeated(self) -> None:
        """Learn that the same run was asked for before: nothing more is told of it here."""


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits of handles and leases."""

    max_sequence_count: int = 1024
    default_lease_seconds: float = 600.0
    max_lease_seconds: float = 3600.0
    grace_seconds: float = 30.0
    """Seconds for which an owner's idle handles outlive its last connection."""
    sweep_seconds: float = 1.0


@dataclass(slots=True)
class _Round(Generic[JobT]):
    number: int
    content: object
    job: JobT
    listeners: list[Listener[JobT]] = field(default_factory=list)
    compiled: Compiled | None = None
    """The structure of its rule. Held until the round ends, so that no step has to compile it."""
    answered: bool = False

    def add_listener(self, listener: Listener[JobT]) -> None:
        """Report the answer to a listener, now or when there is one. A run's parts are told once,
        to its first listener."""
        if isinstance(self.job, ContinuingJob):
            listener.repeated()
            return
        if not self.answered:
            self.listeners.append(listener)
            return
        try:
            listener.done(self.job)
        except Exception as error:
            listener.failed(error)

    def notify_parts(self, parts: list[Job]) -> None:
        """Report parts that have ended while the round goes on."""
        for listener in [*self.listeners]:
            try:
                listener.parts_done(parts)
            except Exception as error:
                self.listeners.remove(listener)
                listener.failed(error)
                if isinstance(self.job, ContinuingJob):
                    self.job.stop()

    def finish(self, error: Exception | None) -> None:
        """End the round with its answer, or with an error."""
        listeners, self.listeners = self.listeners, []
        self.answered, self.compiled = error is None, None
        for listener in listeners:
            try:
                if error is None:
                    listener.done(self.job)
                else:
                    listener.failed(error)
            except Exception as failure:
                listener.failed(failure)


@dataclass(slots=True, weakref_slot=True)
class _Early:
    """Grants and stops that came before a run's structure was compiled. The starts that wait for
    the structure hold it."""

    granted_length: int = 0
    is_stopped: bool = False

    def tell(self, job: ContinuingJob) -> None:
        if isinstance(job, RunJob):
            job.grant(self.granted_length)
        if self.is_stopped:
            job.stop()


class JobHost(Generic[JobT]):
    """Handles, leases and rounds over one worker. It belongs to one event loop. Call `start`
    first."""

    def __init__(
        self, make_worker: MakeWorker, limits: HostLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` is the time of leases and of the owners' grace period."""
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._leases = Leases(clock)
        self.owners = Owners(limits.grace_seconds, clock)
        """The owners of handles. The service records each owner's connections here."""
        self._sequences: dict[str, Sequence] = {}
        self._rounds: dict[str, _Round[JobT]] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._asked: dict[Job, _Round[JobT]] = {}
        self._compiling_count = 0
        self._early: WeakValueDictionary[tuple[str, int], _Early] = WeakValueDictionary()
        """Grants and stops of rounds whose structures are being compiled."""
        self._worker = make_worker(self._on_finished, self._on_parts)
        self._sweeper: asyncio.Task[None] | None = None
        self.trials: StructureTrials | None = None
        """Set if structures may take any time and memory to compile."""
        self.on_closed: Callable[[str], None] = lambda handle: None
        """Called with each handle that is closed, for any reason."""

    async def start(self) -> Served:
        """Start the worker, and accept jobs from then on. Raises what the worker's start raises."""
        try:
            served = await asyncio.to_thread(self._worker.start)
        except asyncio.CancelledError:
            self._worker.abandon()
            raise
        self._sweeper = self._loop.create_task(self._sweep())
        return served

    @property
    def served(self) -> Served:
        """The facts of what is served, once `start` has returned."""
        return self._worker.served

    @property
    def step_times(self) -> StepTimes:
        """The times of recent steps. They belong to the worker."""
        return self._worker.step_times

    @property
    def load(self) -> Load:
        """The current load."""
        paused = sum(not last.answered and last.job not in self._asked for last in [*self._rounds.values()])
        unfinished = len(self._asked) + self._compiling_count
        return replace(self._worker.load, paused_count=paused, unfinished_count=unfinished)

    def open_handle(self, handle: str, lease_seconds: float | None, owner: str = "") -> None:
        """Open a handle under a name that the caller chooses, unless it is open already.
        ``lease_seconds`` None gives the default lease.

        If the limit of open sequences is reached, an idle handle is evicted
        (`Owners.handle_to_evict`); its owner restates it when it needs it. SequenceLimitError if
        none is idle. UnknownHandleError if the handle was closed, because no caller would ever
        close it again.
        """
        if self._leases.is_live(handle):
            return
        if handle in self._closed:
            raise UnknownHandleError("this handle was closed")
        self._remove_handle(handle)  # in case its lease has just ended
        if len(self._sequences) >= self._limits.max_sequence_count:
            evicted = self.owners.handle_to_evict(owner)
            if evicted is None:
                count = len(self._sequences)
                raise SequenceLimitError(f"{count} sequences are open, which is the limit, and none is idle")
            log.debug("handle %s is evicted: the limit of open sequences is reached", evicted)
            self._remove_handle(evicted)
        granted = min(lease_seconds or self._limits.default_lease_seconds, self._limits.max_lease_seconds)
        sequence = Sequence(handle)
        self._sequences[handle] = sequence
        self._leases.grant(handle, granted)
        self.owners.add_handle(handle, owner)
        self._worker.add_sequence(sequence)

    def renew_lease(self, handle: str) -> None:
        """Start the idle time of a handle's lease again. UnknownHandleError if the handle is not
        open."""
        self._leases.renew(handle)

    def close_handle(self, handle: str) -> None:
        """Release a handle's pages and never open it again, even if it was not open yet."""
        self._closed[handle] = None
        if len(self._closed) > _CLOSED_COUNT:
            self._closed.popitem(last=False)
        self._remove_handle(handle)

    def _remove_handle(self, handle: str) -> None:
        self.on_closed(handle)
        self._leases.remove(handle)
        self.owners.remove_handle(handle)
        self._end_paused(
            self._rounds.pop(handle, None), UnknownHandleError("this handle was closed while its run paused")
        )
        sequence = self._sequences.pop(handle, None)
        if sequence is not None:
            self._worker.remove_sequence(sequence)

    def run_round(
        self,
        handle: str,
        number: int,
        rule: SamplingRule,
        make_job: Callable[[Sequence], JobT],
        listener: Listener[JobT],
        *,
        content: object,
    ) -> Coroutine[Any, Any, None] | None:
        """Run round ``number`` of a handle. A repeated round gets its stored answer; an older
        unfinished round is dropped.

        ``content`` is all that was asked: a repeated round must have equal content. ``listener``
        gets the result. If the rule's structure may have to be compiled first, the caller awaits
        the returned coroutine, in which the round begins. UnknownHandleError, StaleRoundError,
        RoundConflictError, QueueFullError or InvalidStructureError.
        """
        compiler = self.served.matchers.compiler
        if rule.structure is None or compiler is None:
            self._begin_round(handle, number, make_job, listener, content)
            return None
        structure = rule.structure
        early = self._early.setdefault((handle, number), _Early())

        async def compile_and_run() -> None:
            self._compiling_count += 1
            try:
                byte_count = 0 if self.trials is None else await self.trials.check(structure, handle)
                compiled = await asyncio.to_thread(compiler.validate, structure, byte_count)
            finally:
                self._compiling_count -= 1
            self._begin_round(handle, number, make_job, listener, content, compiled, early)

        return compile_and_run()

    def _begin_round(
        self,
        handle: str,
        number: int,
        make_job: Callable[[Sequence], JobT],
        listener: Listener[JobT],
        content: object,
        compiled: Compiled | None = None,
        early: _Early | None = None,
    ) -> None:
        self._leases.renew(handle)
        last = self._rounds.get(handle)
        if last is not None and number < last.number:
            raise StaleRoundError(f"round {number} comes after round {last.number}", last_round=last.number)
        if last is not None and number == last.number:
            if content != last.content:
                raise RoundConflictError(
                    f"round {number} was asked before with other content; a new round takes a new number"
                )
            last.add_listener(listener)
            return
        job = make_job(self._sequences[handle])
        if isinstance(job, ContinuingJob) and early is not None:
            early.tell(job)
        if last is not None:
            last.job.overtake()  # before the new job begins on the same sequence
        self._worker.submit(job)
        self._end_paused(last, StaleRoundError("overtaken by a newer round"))
        self.owners.mark_busy(handle)
        self._rounds[handle] = self._asked[job] = _Round(number, content, job, [listener], compiled)

    def grant(self, handle: str, number: int, granted_length: int) -> None:
        """Let a run go on to a length. Nothing happens if the handle's last round is another
        one."""
        if (early := self._early.get((handle, number))) is not None:
            early.granted_length = max(early.granted_length, granted_length)
        run = self._run_of(handle, number)
        if run is not None and not run.answered:
            self._leases.extend(handle)
            run.job.grant(granted_length)
            self._resume(handle, run)

    def commit(self, handle: str, number: int, *, at_once: bool) -> None:
        """Let a job go on that has been told of committed tokens. ``at_once``: it takes them in
        after its current step, not only once its multi-step run is over. Nothing happens if the
        handle's last round is another one."""
        run = self._run_of(handle, number)
        if run is None or run.answered:
            return
        self._leases.extend(handle)
        if run.job not in self._asked:
            self._resume(handle, run)
        elif at_once:
            self._worker.notice()

    def hint(self, handle: str, number: int, hint: Hint) -> None:
        """Let a run's next steps use a hint. Nothing happens if the handle's last round is another
        one, or if the run has passed all of the hint."""
        run = self._run_of(handle, number)
        if run is not None and not run.answered and hint.end > run.job.length:
            self._worker.add_hint(run.job, hint)

    def stop_run(self, handle: str, number: int) -> None:
        """End a run after its step. Nothing happens if the handle's last round is another one."""
        if (early := self._early.get((handle, number))) is not None:
            early.is_stopped = True
        run = self._run_of(handle, number)
        if run is None or run.answered:
            return
        run.job.stop()
        if run.job in self._asked:
            self._worker.notice()
        else:
            run.finish(None)

    def _run_of(self, handle: str, number: int) -> _Round[Any] | None:
        run: _Round[Any] | None = self._rounds.get(handle)
        return run if run is not None and run.number == number and isinstance(run.job, ContinuingJob) else None

    def _resume(self, handle: str, run: _Round[Any]) -> None:
        """Let a paused run go on if it has something to do."""
        if run.job in self._asked:
            return
        run.job.learn()
        if run.job.is_paused:
            return
        run.job.resume()
        try:
            self._worker.submit(run.job)
        except (QueueFullError, ModelThreadFailedError) as error:
            del self._rounds[handle]
            run.finish(error)
            return
        self._asked[run.job] = run
        self.owners.mark_busy(handle)

    def _end_paused(self, last: _Round[Any] | None, error: Exception) -> None:
        """Fail a run that is paused, because it will not go on. One that is at work ends with its
        job."""
        if last is not None and not last.answered and last.job not in self._asked:
            last.finish(error)

    async def stop(self) -> None:
        """Stop the sweep and the worker. ModelThreadFailedError if the thread had failed
        before, so that the process's exit status shows the failure."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.to_thread(self._worker.stop)
        if self._worker.failure is not None:
            raise self._worker.failure

    def _on_finished(self, ended: list[tuple[Job, Exception | None]]) -> None:
        self._loop.call_soon_threadsafe(self._deliver, ended)  # from the worker's thread to the event loop

    def _on_parts(self, jobs: list[Job]) -> None:
        self._loop.call_soon_threadsafe(self._deliver_parts, jobs)  # from the worker's thread to the event loop

    def _deliver_parts(self, jobs: list[Job]) -> None:
        for job in jobs:
            if (asked := self._asked.get(job)) is not None:
                asked.notify_parts([job])

    def _deliver(self, ended: list[tuple[Job, Exception | None]]) -> None:
        for job, error in ended:
            handle, asked = job.sequence.handle, self._asked.pop(job)
            self._leases.extend(handle)  # idle time starts with the answer
            is_last = self._rounds.get(handle) is asked
            if is_last:
                self.owners.mark_idle(handle, answered=error is None)
                if error is not None:
                    del self._rounds[handle]  # a failed round may be asked again under its number
            if isinstance(job, ContinuingJob):
                if error is not None or not job.is_over:
                    asked.notify_parts([job])  # a run's last result has what is left
                if error is None and not job.is_over:  # it was paused
                    if is_last:
                        self._resume(handle, asked)  # a grant may have come meanwhile
                        continue
                    error = (
                        StaleRoundError("overtaken by a newer round")
                        if handle in self._rounds
                        else UnknownHandleError("this handle was closed as its run paused")
                    )
            asked.finish(error)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep_seconds)
            for handle in self._leases.expired():
                last = self._rounds.get(handle)
                if last is not None and last.job in self._asked:
                    self._leases.extend(handle)  # a long prefill is not idleness
                    continue
                log.info("the lease of handle %s has ended; its pages are released", hashed(handle))
                self._remove_handle(handle)
            for owner, orphans in self.owners.orphaned_handles().items():
                log.info(
                    "%s has been gone for %g s: %d of its handles end", owner, self._limits.grace_seconds, len(orphans)
                )
                for handle in orphans:
                    self._remove_handle(handle)


class EngineHost(JobHost[JobT]):
    """Handles, leases and rounds over one model thread."""

    def __init__(
        self,
        load_engine: Callable[[], Engine],
        batch_limits: BatchLimits,
        limits: HostLimits,
        on_step: OnStep = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``load_engine`` runs on the model thread when the host starts."""

        def make_thread(on_finished: Finished, on_parts: OnParts) -> ModelThread:
            self._thread = ModelThread(load_engine, batch_limits, on_finished, on_parts, on_step)
            return self._thread

        super().__init__(make_thread, limits, clock)

    async def start(self) -> Engine:
        """Load the engine on its thread, and accept jobs from then on. Raises what loading
        raises."""
        await super().start()
        return self.engine

    @property
    def engine(self) -> Engine:
        """The engine, once `start` has returned. Read only what never changes."""
        return self._thread.engine
