"""Trials of structures before they are compiled: in a few processes, one at a time for each caller,
with stored outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.sampling.structure import Structure
from slipstream.sampling.structure_errors import InvalidStructureError, StructureUnsupportedError
from slipstream.sampling.structure_source import checked_length
from slipstream.structures.limits import CompileLimits
from slipstream.structures.slots import HeldSlots, Slot
from slipstream.structures.trial_process import TrialProcess

log = logging.getLogger(__name__)

PROCESS_COUNT = 2
KEPT_OUTCOMES = 1024
"""Most stored outcomes. Each has a line or two."""

MOST_WAITING = 32
"""Most structures of one caller that wait for its slot. Each may have 64 KiB."""

_START_ERRORS = (OSError, RuntimeError, TimeoutError)

_WALL_SECONDS, _WALL_FACTOR = 10.0, 10.0
"""Most seconds in which a process gets its processor time on a busy machine: a fixed part, and a
multiple of the processor time."""

_REPEATABLE = ("compiled", "invalid", "unsupported", "seconds", "memory", "levels")
"""Outcomes that a second try would have too."""


T = TypeVar("T")


class StructureQueueFullError(SlipstreamError):
    """The caller has too many structures that wait to be compiled."""

    reason = Reason.OVERLOADED
    retry_after = 1.0


class StructureTrialError(SlipstreamError):
    """The process that compiles structures cannot start, or gets no processor time.

    The error is not UNAVAILABLE, because other sessions would then avoid the draft that reports it.
    """

    reason = Reason.OVERLOADED
    retry_after = 2.0


async def _first_of(starting: set[asyncio.Task[None]]) -> None:
    """Wait for the first start to end, and raise what it raises. A caller that is cancelled does
    not end the start."""
    done, _ = await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
    for each in done:
        each.result()


class StructureTrials:
    """The trials of one service. Its processes start with the first structures and end with
    `close`."""

    def __init__(
        self,
        tokenizer_json: str | bytes,
        vocabulary_size: int,
        end_token_ids: Sequence[int],
        limits: CompileLimits | None = None,
    ) -> None:
        self.limits = limits or CompileLimits()
        self._tokenizer = tokenizer_json.encode() if isinstance(tokenizer_json, str) else tokenizer_json
        self._terms = {
            "vocabulary_size": vocabulary_size,
            "end_token_ids": list(end_token_ids),
            "seconds": self.limits.seconds,
            "memory_mib": self.limits.memory_mib,
        }
        self._outcomes: OrderedDict[bytes, dict[str, Any]] = OrderedDict()
        self._slots: defaultdict[str, Slot] = defaultdict(Slot)
        self._idle: list[TrialProcess] = []
        self._busy: set[TrialProcess] = set()
        self._free = asyncio.Semaphore(PROCESS_COUNT)
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        """Number of trials by outcome."""

    async def check(self, structure: Structure, caller: str) -> int:
        """Return the bytes that a structure takes once it is compiled. A cancelled caller ends its
        trial.

        InvalidStructureError if it is invalid or exceeds a limit; StructureUnsupportedError;
        StructureQueueFullError; StructureTrialError, also after `close`.
        """
        checked_length(structure, self.limits.source_bytes)
        key = hashlib.sha256(f"{structure.kind.value} {structure.source}".encode()).digest()
        outcome = self._known(key)
        if outcome is None:
            slot = await self._slot(caller)
            try:
                outcome = self._known(key) or await self._tried(key, structure, slot)
            finally:
                slot.release()
        return self._byte_count(outcome)

    async def close(self) -> None:
        """End the processes, and the checks that wait for them."""
        self._closed = True
        while self._tasks or self._busy or self._idle:
            for process in [*self._idle, *self._busy]:
                await process.close()
            self._idle.clear()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # let the checks whose process ended return

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [process.pid for process in [*self._idle, *self._busy]]

    def _known(self, key: bytes) -> dict[str, Any] | None:
        if key in self._outcomes:
            self._outcomes.move_to_end(key)
        return self._outcomes.get(key)

    async def _slot(self, caller: str) -> HeldSlots:
        """Take a caller's own slot, then a process's. A caller that floods waits for its own
        slot."""
        slot = self._slots[caller]
        if slot.count > MOST_WAITING:
            raise StructureQueueFullError(f"{MOST_WAITING} structures of this caller wait to be compiled")
        slot.count += 1
        turn = HeldSlots(lambda: self._left(caller))
        try:
            await slot.lock.acquire()
            turn.held.append(slot.lock)
            await self._free.acquire()
            turn.held.append(self._free)
        except BaseException:
            turn.release()
            raise
        return turn

    def _left(self, caller: str) -> None:
        slot = self._slots[caller]
        slot.count -= 1
        if not slot.count:
            del self._slots[caller]

    async def _tried(self, key: bytes, structure: Structure, turn: HeldSlots) -> dict[str, Any]:
        process = await self._process()
        self._busy.add(process)
        try:
            wall_seconds = _WALL_SECONDS + self.limits.seconds * _WALL_FACTOR
            outcome = await process.run(structure, wall_seconds)
        finally:
            self._busy.discard(process)
            if process.is_alive:
                self._idle.append(process)
            else:
                self._beside(self._replace(process, turn.hand_over()))
        self.counts[outcome["outcome"]] += 1
        if outcome["outcome"] in _REPEATABLE:
            self._outcomes[key] = outcome
            if len(self._outcomes) > KEPT_OUTCOMES:
                self._outcomes.popitem(last=False)
        return outcome

    async def _process(self) -> TrialProcess:
        """Return a process that is ready: an idle one, or the next one that starts. A start
        continues if its caller is cancelled."""
        while True:
            if self._closed:
                raise StructureTrialError("the service is stopping and compiles no more structures")
            while self._idle:
                process = self._idle.pop()
                if process.is_alive:
                    return process
            while (
                len(self._starting) + len(self._busy) < PROCESS_COUNT
            ):  # one process for this caller, one for the next
                self._begin_start()
            try:
                await _first_of(self._starting)
            except _START_ERRORS as error:
                raise StructureTrialError("the process that compiles structures cannot start") from error

    def _begin_start(self) -> asyncio.Task[None]:
        starting = self._beside(self._start())
        self._starting.add(starting)
        starting.add_done_callback(self._started)
        return starting

    def _started(self, starting: asyncio.Task[None]) -> None:
        """Log each failed start once, even if no caller waits for it."""
        self._starting.discard(starting)
        if not starting.cancelled() and (error := starting.exception()) is not None:
            log.error("the process that compiles structures cannot start: %s", str(error) or "it is not ready in time")

    async def _start(self) -> None:
        process = await TrialProcess.start(self._terms, self._tokenizer)
        if self._closed:
            await process.close()
        else:
            self._idle.append(process)

    async def _replace(self, process: TrialProcess, turn: HeldSlots) -> None:
        """Wait for the end of a process, and start another one. Until then the caller that ended it
        keeps its slot, so that it never takes the process that another caller would get."""
        try:
            await process.close()
            if not self._closed:
                with contextlib.suppress(*_START_ERRORS):  # the next caller gets the error
                    await self._begin_start()
        finally:
            turn.release()

    def _beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work that continues if its caller is cancelled. `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _byte_count(self, outcome: dict[str, Any]) -> int:
        limits = self.limits
        match outcome["outcome"]:
            case "compiled":
                return int(outcome["byte_count"])
            case "unsupported":
                raise StructureUnsupportedError(outcome["why"])
            case "invalid":
                raise InvalidStructureError(outcome["why"], outcome["rule"])
            case "seconds":
                limit = f"within {limits.seconds:g} s of processor time (--structure-compile-seconds)"
            case "memory":
                limit = f"in {limits.memory_mib} MiB of memory (--structure-memory-mib)"
            case "levels":
                raise InvalidStructureError("must have fewer levels: they overflow the compiler's stack")
            case other:
                log.warning("a structure could not be tried (%s)", other)
                raise StructureTrialError("the structure could not be compiled in time: the machine is too busy")
        what = "use smaller ranges, repetitions and multiples, or fewer alternatives"
        raise InvalidStructureError(f"must compile {limit}: {what}")
