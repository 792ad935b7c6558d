"""Cancelling running turns."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn_record import Ending


class RetryingWork:
    """A turn that tries something for a limited time, again and again."""

    principal = ""
    begun = 0.0
    is_not_drafting = False

    def __init__(self) -> None:
        self.record: Any = object()
        self.statistics = TurnStatistics()
        self.deadline = 0.0
        self.trying, self.ended = asyncio.Event(), asyncio.Event()
        self.ending: Ending | None = None

    async def run_rounds(self) -> Exception | None:
        """Try until the turn is cancelled."""
        while True:
            try:
                async with asyncio.timeout(0.05) as limit:
                    self.deadline = limit.when() or 0.0
                    self.trying.set()
                    await asyncio.sleep(60)
            except TimeoutError:
                continue

    async def finish(self, rounds: asyncio.Task[Exception | None], why_cancelled: Callable[[], Ending | None]) -> None:
        """Note why the rounds were cancelled."""
        try:
            await rounds
        except asyncio.CancelledError:
            self.ending = why_cancelled()

    def release_permit(self) -> None:
        """Note that the turn has ended."""
        self.ended.set()


async def test_a_cancel_counts_even_at_the_moment_when_a_time_limit_ends() -> None:
    work = RetryingWork()
    async with TurnTasks() as tasks:
        tasks.start_turn(work)
        await work.trying.wait()
        loop = asyncio.get_running_loop()
        loop.call_at(work.deadline + 1e-3, tasks.request_cancel, work.record, Ending.CANCELLED)
        time.sleep(0.1)  # noqa: ASYNC251  both are due then, and the limit's own cancel comes first
        await asyncio.wait_for(work.ended.wait(), 60)
    assert work.ending is Ending.CANCELLED
