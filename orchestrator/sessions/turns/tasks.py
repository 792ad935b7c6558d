"""The tasks of all running turns. No turn outlives their context."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from orchestrator.errors import ShuttingDownError
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.turn_record import Ending, TurnRecord

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")

_DRAIN_POLL_SECONDS = 0.25
"""Seconds between two checks of a drain whether its turns can still go on."""


class TurnWork(Protocol):
    """The work of a turn; see `orchestrator.sessions.turns.turn.Turn`."""

    record: TurnRecord
    principal: str
    begun: float
    """When the turn was requested, by the monotonic clock."""
    statistics: TurnStatistics

    @property
    def is_not_drafting(self) -> bool:
        """True if the turn leaves its draft alone because drafting would not pay."""

    async def run_rounds(self) -> Exception | None:
        """Run until the turn has its answer, cannot go on, or is cancelled."""

    async def finish(self, rounds: asyncio.Task[Exception | None], why_cancelled: Callable[[], Ending | None]) -> None:
        """Wait for the rounds, and end the turn. ``why_cancelled`` returns why they were
        cancelled."""

    def release_permit(self) -> None:
        """Release the admission permit: the turn has ended."""


class _RunningTurn:
    """A turn with its two tasks: the rounds, which can be cancelled, and the whole turn."""

    def __init__(self, work: TurnWork, group: asyncio.TaskGroup) -> None:
        self.work = work
        self._ending: Ending | None = None
        self._rounds = group.create_task(work.run_rounds())
        self.task = group.create_task(work.finish(self._rounds, lambda: self._ending))

    def cancel(self, why: Ending) -> None:
        """End the turn where it stands; await `task` to see it ended. A second reason is
        ignored."""
        # `Task.cancelling` does not tell: a time limit inside the rounds cancels them for a moment.
        if self._ending is None and not self._rounds.done():
            self._ending = why
            self._rounds.cancel()


class TurnTasks:
    """A context in which turns run; after it none is left. An exception of a task ends the
    context."""

    def __init__(self, on_draining: Callable[[], None] = lambda: None) -> None:
        """``on_draining`` is called when no new turn may begin any more."""
        self._on_draining = on_draining
        self.draining = False
        """True if no new turn may begin."""
        self._has_drained = False
        self._group = asyncio.TaskGroup()
        self._turns: dict[TurnRecord, _RunningTurn] = {}
        self._completing: set[asyncio.Task[None]] = set()
        """Tasks that must run to their end, and may be about to start turns."""
        self._background: list[asyncio.Task[None]] = []
        self._drain_listeners: set[asyncio.Event] = set()

    async def __aenter__(self) -> TurnTasks:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(0)
        for task in self._background:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    @property
    def turns(self) -> list[TurnWork]:
        """The turns that run."""
        return [turn.work for turn in list(self._turns.values())]

    def start_turn(self, work: TurnWork) -> None:
        """Run a turn. If the drain is over, the turn ends at once."""
        turn = self._turns[work.record] = _RunningTurn(work, self._group)

        def end(_: asyncio.Task[None]) -> None:
            self._turns.pop(work.record, None)
            work.release_permit()

        turn.task.add_done_callback(end)
        if self._has_drained:
            turn.cancel(Ending.SHUTTING_DOWN)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work for as long as turns may run."""
        self._background.append(self._group.create_task(work))

    async def run_to_completion(self, work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        """Return what work returns; the work goes on to its end if the caller is cancelled."""
        outcome: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                answer = await work
            except Exception as error:
                if outcome.done():  # the caller has left
                    log.debug("failed after its caller was cancelled: %s", error)
                else:
                    outcome.set_exception(error)
            else:
                if not outcome.done():
                    outcome.set_result(answer)

        task = self._group.create_task(run())
        self._completing.add(task)
        task.add_done_callback(self._completing.discard)
        return await outcome

    def request_cancel(self, record: TurnRecord, why: Ending) -> None:
        """Cancel a turn, if it runs, without waiting for its end."""
        turn = self._turns.get(record)
        if turn is not None:
            turn.cancel(why)

    async def cancel_turn(self, record: TurnRecord, why: Ending) -> None:
        """Cancel a turn, if it runs, and wait until it has ended."""
        turn = self._turns.get(record)
        if turn is not None:
            turn.cancel(why)
            await asyncio.wait([turn.task])

    async def drain(self, seconds: float, can_go_on: Callable[[], bool] = lambda: True) -> None:
        """Start nothing new, wait for the running turns, and then cancel them.

        They have so many seconds to end, or as long as they ``can_go_on``.
        """
        self.draining = True
        self._on_draining()
        for listener in self._drain_listeners:
            listener.set()
        deadline = time.monotonic() + seconds
        if self._turns:
            log.info("%d turns are running: they have %g s to end", len(self._turns), seconds)
        while (
            (tasks := [*self._turn_tasks(), *self._completing])
            and (left := deadline - time.monotonic()) > 0
            and can_go_on()
        ):
            await asyncio.wait(tasks, timeout=min(left, _DRAIN_POLL_SECONDS))
        self._has_drained = True
        for turn in list(self._turns.values()):
            turn.cancel(Ending.SHUTTING_DOWN)
        while turn_tasks := self._turn_tasks():
            await asyncio.wait(turn_tasks)

    def _turn_tasks(self) -> list[asyncio.Task[None]]:
        return [turn.task for turn in self._turns.values()]

    def refuse_while_draining(self) -> None:
        """Raise ShuttingDownError if no new turn may begin."""
        if self.draining:
            raise ShuttingDownError("the server is shutting down")

    @contextmanager
    def waking_on_drain(self, event: asyncio.Event) -> Iterator[None]:
        """Set ``event`` when draining begins, while this context is open."""
        self._drain_listeners.add(event)
        try:
            yield
        finally:
            self._drain_listeners.discard(event)
