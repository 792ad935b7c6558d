"""The tasks of all running turns: begun, waited for, ended. No turn outlives this."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from orchestrator.errors import ShuttingDownError
from orchestrator.sessions.turn import Ending, Turn

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
"""How often a drain looks whether its turns can still go on."""


class TurnTasks:
    """Use as a context: inside it turns run, after it none is left. What a task of it raises ends the context."""

    def __init__(self) -> None:
        self.draining = False
        """Whether nothing new may begin."""
        self._group = asyncio.TaskGroup()
        self._turns: set[Turn] = set()
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

    def begin(self, turn: Turn) -> None:
        """Run a turn."""
        turn.task = self._group.create_task(turn.run())
        self._turns.add(turn)
        turn.task.add_done_callback(lambda _: self._turns.discard(turn))

    def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what has to go on for as long as turns do."""
        self._beside.append(self._group.create_task(work))

    async def end(self, turn: Turn, why: Ending) -> None:
        """End a turn and see it ended."""
        turn.end(why)
        if turn.task is not None:
            await asyncio.wait([turn.task])

    async def drain(self, seconds: float, can_go_on: Callable[[], bool] = lambda: True) -> None:
        """Begin nothing new, give running turns that long to end, or as long as they ``can_go_on``, then end them."""
        self.draining = True
        for listener in self._drain_listeners:
            listener.set()
        turns = list(self._turns)
        tasks = [turn.task for turn in turns if turn.task is not None]
        if tasks:
            log.info("%d turns are running: they have %g s to end", len(tasks), seconds)
            await _wait(tasks, seconds, can_go_on)
        for turn in turns:
            turn.end(Ending.SHUTTING_DOWN)
        if tasks:
            await asyncio.wait(tasks)

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


async def _wait(tasks: Sequence[asyncio.Task[None]], seconds: float, can_go_on: Callable[[], bool]) -> None:
    """Until all tasks have ended, time is up, or there is nothing to wait for."""
    give_up = time.monotonic() + seconds
    pending: set[asyncio.Task[None]] = set(tasks)
    while pending and (left := give_up - time.monotonic()) > 0 and can_go_on():
        _, pending = await asyncio.wait(pending, timeout=min(left, _LOOK_SECONDS))
