"""The tasks of all running turns: begun, waited for, ended. No turn outlives this."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from orchestrator.errors import ShuttingDownError
from orchestrator.sessions.turns.turn import Ending, Turn

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")

_LOOK_SECONDS = 0.25
"""How often a drain looks whether its turns can still go on."""


class TurnTasks:
    """Use as a context: inside it turns run, after it none is left. What a task of it raises ends
    the context."""

    def __init__(self, on_draining: Callable[[], None] = lambda: None) -> None:
        """``on_draining`` is called when nothing new may begin any more."""
        self._on_draining = on_draining
        self.draining = False
        """Whether nothing new may begin."""
        self._over = False
        self._group = asyncio.TaskGroup()
        self._turns: set[Turn] = set()
        self._sure: set[asyncio.Task[None]] = set()
        """What must not be left half done, and may be about to begin turns."""
        self._beside: list[asyncio.Task[None]] = []
        self._drain_listeners: set[asyncio.Event] = set()

    async def __aenter__(self) -> TurnTasks:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(0)
        for task in self._beside:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    @property
    def turns(self) -> list[Turn]:
        """Those that run."""
        return list(self._turns)

    def begin(self, turn: Turn, on_done: Callable[[], None]) -> None:
        """Run a turn; where it is too late for that, it ends at once. ``on_done`` is called when it
        has ended."""
        if self._over:
            turn.end(Ending.SHUTTING_DOWN)
        turn.task = self._group.create_task(turn.run())
        self._turns.add(turn)

        def done(_: asyncio.Task[None]) -> None:
            self._turns.discard(turn)
            on_done()

        turn.task.add_done_callback(done)

    def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what has to go on for as long as turns do."""
        self._beside.append(self._group.create_task(work))

    async def surely(self, work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        """What must not be left half done: if the caller is cancelled, it goes on."""
        outcome: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                answer = await work
            except Exception as error:
                if outcome.done():  # nobody is left to be told
                    log.debug("given up by its caller, and then: %s", error)
                else:
                    outcome.set_exception(error)
            else:
                if not outcome.done():
                    outcome.set_result(answer)

        task = self._group.create_task(run())
        self._sure.add(task)
        task.add_done_callback(self._sure.discard)
        return await outcome

    async def end(self, turn: Turn, why: Ending) -> None:
        """End a turn and see it ended."""
        turn.end(why)
        if turn.task is not None:
            await asyncio.wait([turn.task])

    async def drain(self, seconds: float, can_go_on: Callable[[], bool] = lambda: True) -> None:
        """Begin nothing new, give running turns that long to end, or as long as they ``can_go_on``,
        then end them."""
        self.draining = True
        self._on_draining()
        for listener in self._drain_listeners:
            listener.set()
        give_up = time.monotonic() + seconds
        if tasks := self._running_tasks():
            log.info("%d turns are running: they have %g s to end", len(tasks), seconds)
        while (
            (tasks := [*self._running_tasks(), *self._sure])
            and (left := give_up - time.monotonic()) > 0
            and can_go_on()
        ):
            await asyncio.wait(tasks, timeout=min(left, _LOOK_SECONDS))
        self._over = True
        for turn in self._turns:
            turn.end(Ending.SHUTTING_DOWN)
        while tasks := self._running_tasks():
            await asyncio.wait(tasks)

    def _running_tasks(self) -> list[asyncio.Task[None]]:
        return [turn.task for turn in self._turns if turn.task is not None]

    def refuse_while_draining(self) -> None:
        """ShuttingDownError if nothing new may begin."""
        if self.draining:
            raise ShuttingDownError("the server is shutting down")

    @contextmanager
    def waking_on_drain(self, event: asyncio.Event) -> Iterator[None]:
        """Inside, ``event`` is set when draining begins."""
        self._drain_listeners.add(event)
        try:
            yield
        finally:
            self._drain_listeners.discard(event)
