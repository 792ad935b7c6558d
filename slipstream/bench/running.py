"""Run a load: start conversations as the schedule says, and collect their records.

Latency counts from the start that the schedule intends. A server, or a client, that holds requests
back thus shows in the figures, and is not left out of them (coordinated omission).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from slipstream.bench.client_load import watched_client
from slipstream.bench.metrics_page import added
from slipstream.bench.prompts import Conversation
from slipstream.bench.records import Record
from slipstream.bench.report import Report, report_of
from slipstream.bench.schedule import Schedule
from slipstream.bench.server import BenchServer

_LONGEST_WAIT = 60.0
"""Most seconds that a worker waits because a server asked it to."""


@dataclass(slots=True)
class Run:
    """A load in progress."""

    server: BenchServer
    conversations: Sequence[Conversation]
    schedule: Schedule
    on_record: Callable[[Record], None] = lambda record: None
    """Called with each record as it is complete."""
    records: list[Record] = field(default_factory=list)
    _began: float = 0.0

    async def load(self) -> float:
        """Run the load, and return its seconds."""
        self._began = time.monotonic()
        async with asyncio.TaskGroup() as group:  # cancels each task once: a task then deletes its session
            if self.schedule.rate is not None:
                await self._open_loop(group)
            else:
                self._closed_loop(group)
        return max((record.ended for record in self.records if not record.error), default=time.monotonic()) - min(
            (record.intended for record in self.records), default=self._began
        )

    async def _open_loop(self, group: asyncio.TaskGroup) -> None:
        limit = nullcontext() if self.schedule.concurrency is None else asyncio.Semaphore(self.schedule.concurrency)
        held = itertools.cycle(self.conversations)

        async def hold(conversation: Conversation, intended: float) -> None:
            async with limit:
                await self._hold(conversation, intended)

        for offset in self.schedule.offsets():
            intended = self._began + offset
            await asyncio.sleep(max(0.0, intended - time.monotonic()))
            group.create_task(hold(next(held), intended))

    def _closed_loop(self, group: asyncio.TaskGroup) -> None:
        assert self.schedule.concurrency is not None
        held = self._within_limits()

        async def work() -> None:
            for conversation in held:
                last = await self._hold(conversation, time.monotonic())
                if last is not None and last.retry_after is not None:
                    await asyncio.sleep(min(last.retry_after, _LONGEST_WAIT))

        for _ in range(self.schedule.concurrency):
            group.create_task(work())

    def _within_limits(self) -> Iterator[Conversation]:
        """Yield conversations until there are enough, or the time is over."""
        for conversation in itertools.islice(itertools.cycle(self.conversations), self.schedule.count):
            if self.schedule.duration is not None and time.monotonic() - self._began >= self.schedule.duration:
                return
            yield conversation

    async def _hold(self, conversation: Conversation, intended: float) -> Record | None:
        record = None
        async for record in self.server.hold(conversation, intended):
            self.records.append(record)
            self.on_record(record)
        return record


async def run_load(
    server: BenchServer,
    conversations: Sequence[Conversation],
    schedule: Schedule,
    goals: Mapping[str, float] | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> tuple[Report, list[Record]]:
    """Run a load on a server, and return the report with the records it was made of."""
    before = await server.counters()
    run = Run(server, conversations, schedule, on_record)
    async with watched_client() as watch:
        seconds = await run.load()
        client = watch.load()
    grown = added(before, await server.counters())
    return report_of(run.records, seconds, goals, client, grown), run.records


async def warm_up(server: BenchServer, conversations: Sequence[Conversation], count: int) -> None:
    """Hold so many conversations, one after the other, that do not count."""
    for conversation in itertools.islice(itertools.cycle(conversations), count):
        async for _ in server.hold(conversation, time.monotonic()):
            pass
