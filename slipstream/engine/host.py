"""The engine as an event loop sees it: open, close, run a round, look at the load. Nothing here computes."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from slipstream.engine.engine import Engine
from slipstream.engine.errors import RoundConflictError, SequenceLimitError, StaleRoundError, UnknownHandleError
from slipstream.engine.job import Job
from slipstream.engine.leases import Leases
from slipstream.engine.load import Load
from slipstream.engine.model_thread import ModelThread
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import Sequence
from slipstream.sampling.rule import SamplingRule

log = logging.getLogger(__name__)

_CLOSED_COUNT = 10_000
"""Handles remembered as closed: one may be closed before the item comes that would have opened it."""

_LONGEST_HANDLE = 64
"""No longer one can be opened, and so none needs to be remembered."""

JobT = TypeVar("JobT", bound=Job)


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What the host grants."""

    max_sequence_count: int = 1024
    default_lease_seconds: float = 600.0
    max_lease_seconds: float = 3600.0
    sweep_seconds: float = 1.0


@dataclass(slots=True)
class _Round(Generic[JobT]):
    number: int
    content: object
    job: JobT
    answer: asyncio.Future[JobT]


class EngineHost(Generic[JobT]):
    """Handles, leases and rounds over one model thread. Belongs to one event loop; `start` comes first."""

    def __init__(self, load_engine: Callable[[], Engine], batch_limits: BatchLimits, limits: HostLimits) -> None:
        self._limits = limits
        self._leases = Leases()
        self._sequences: dict[str, Sequence] = {}
        self._rounds: dict[str, _Round[JobT]] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._answers: dict[Job, asyncio.Future[JobT]] = {}
        self._on_parts: dict[Job, Callable[[list[Job]], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = ModelThread(load_engine, batch_limits, self._on_finished)
        self._sweeper: asyncio.Task[None] | None = None
        self.on_closed: Callable[[str], None] = lambda handle: None
        """Told of each handle that comes back: its owner closed it, or its lease ended."""

    async def start(self) -> Engine:
        """Load the engine on its thread and take jobs from then on; raises what loading raises."""
        engine = await asyncio.to_thread(self._thread.start)
        self._sweeper = self._loop.create_task(self._sweep())
        return engine

    @property
    def engine(self) -> Engine:
        """The engine, once `start` has returned. Only what never changes may be read from here."""
        return self._thread.engine

    @property
    def load(self) -> Load:
        """As it is now."""
        return self._thread.load

    def open(self, handle: str, lease_seconds: float | None) -> None:
        """A handle under a name that the caller has chosen, unless it is open already; None for the default lease.

        SequenceLimitError, or UnknownHandleError if it was closed: nobody would ever close it again.
        """
        if self._leases.holds(handle):
            return
        if handle in self._closed:
            raise UnknownHandleError(f"handle {handle!r} was closed")
        self._end(handle)  # its lease ended just now
        if len(self._sequences) >= self._limits.max_sequence_count:
            raise SequenceLimitError(f"{len(self._sequences)} sequences are open, which is the limit")
        granted = min(lease_seconds or self._limits.default_lease_seconds, self._limits.max_lease_seconds)
        sequence = Sequence(handle)
        self._sequences[handle] = sequence
        self._leases.grant(handle, granted)
        self._thread.add(sequence)

    def renew(self, handle: str) -> None:
        """Start the idle time of a handle's lease again. UnknownHandleError if it is not, or no longer, open."""
        self._leases.renew(handle)

    def close(self, handle: str) -> None:
        """Give a handle's pages back, and never open it again, even if it was not open yet."""
        if len(handle) <= _LONGEST_HANDLE:
            self._closed[handle] = None
        if len(self._closed) > _CLOSED_COUNT:
            self._closed.popitem(last=False)
        self._end(handle)

    def _end(self, handle: str) -> None:
        self.on_closed(handle)
        self._leases.end(handle)
        self._rounds.pop(handle, None)
        sequence = self._sequences.pop(handle, None)
        if sequence is not None:
            self._thread.remove(sequence)

    async def prepare(self, rule: SamplingRule) -> None:
        """Have a rule's structure ready for the rounds that follow. InvalidStructureError with the reason.

        On a thread of its own: a schema may take as long to compile as many rounds take.
        """
        compiler = self.engine.structures.compiler
        if rule.structure is not None and compiler is not None:
            await asyncio.to_thread(compiler.validate, rule.structure)

    async def run(
        self,
        handle: str,
        number: int,
        make_job: Callable[[Sequence], JobT],
        on_parts: Callable[[list[Job]], None] | None = None,
        *,
        content: object,
    ) -> JobT:
        """Run round ``number`` of a handle; a repeated round gets its stored answer, an unfinished older one is dropped.

        ``content`` is all that was asked: a repeated round's must equal it. ``on_parts`` is told of parts of a job that has
        split, as they end, if the job ends later than they.
        UnknownHandleError, StaleRoundError, RoundConflictError, QueueFullError, or what the job itself fails with.
        """
        self._leases.renew(handle)
        last = self._rounds.get(handle)
        if last is not None and number < last.number:
            raise StaleRoundError(f"round {number} comes after round {last.number}", last_round=last.number)
        if last is not None and number == last.number:
            if content != last.content:
                raise RoundConflictError(
                    f"round {number} was asked before with other content; a new round takes a new number"
                )
            return await asyncio.shield(last.answer)
        job = make_job(self._sequences[handle])
        answer: asyncio.Future[JobT] = self._loop.create_future()
        if last is not None:
            last.job.overtake()  # before the new job can begin on the sequence they share
        self._thread.submit(job)
        self._answers[job] = answer
        if on_parts is not None:
            self._on_parts[job] = on_parts
        self._rounds[handle] = _Round(number, content, job, answer)
        return await asyncio.shield(answer)

    async def close_all(self) -> None:
        """Stop sweeping and computing. ModelThreadFailedError if computing had ended by itself: who hears nothing else, like
        the process's exit status, must not say that all is well."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.to_thread(self._thread.stop)
        if self._thread.failure is not None:
            raise self._thread.failure

    def _on_finished(self, ended: list[tuple[Job, Exception | None]]) -> None:
        self._loop.call_soon_threadsafe(self._deliver, ended)  # from the model thread to the event loop

    def _deliver(self, ended: list[tuple[Job, Exception | None]]) -> None:
        parts: defaultdict[Job, list[Job]] = defaultdict(list)
        for job, error in ended:
            if job.parent is not None:
                if error is None:
                    parts[job.parent].append(job)
                continue
            parts.pop(job, None)
            self._on_parts.pop(job, None)
            answer = self._answers.pop(job)
            self._leases.extend(job.sequence.handle)  # idle time starts with the answer
            if error is None:
                answer.set_result(job)  # type: ignore[arg-type]
                continue
            answer.set_exception(error)
            answer.exception()  # whoever asked may be gone; that is no fault
            last = self._rounds.get(job.sequence.handle)
            if last is not None and last.job is job:
                del self._rounds[job.sequence.handle]  # a failed round may be asked again under its number
        for parent, done in parts.items():
            if parent in self._on_parts:
                self._on_parts[parent](done)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep_seconds)
            for handle in self._leases.ended():
                last = self._rounds.get(handle)
                if last is not None and not last.answer.done():
                    self._leases.extend(handle)  # a long prefill is not idleness
                    continue
                log.info("lease of %s ended; its pages come back", handle)
                self._end(handle)
