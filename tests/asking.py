"""Asking an engine host for a round, and waiting for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from slipstream.engine.host import EngineHost
from slipstream.engine.job import Job
from slipstream.engine.sequence import Sequence
from slipstream.sampling.rule import SamplingRule

JobT = TypeVar("JobT", bound=Job)


class Heard(Generic[JobT]):
    """A listener to wait at."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[JobT] = asyncio.get_running_loop().create_future()
        self.parts: list[Job] = []

    def parts_done(self, parts: list[Job]) -> None:
        self.parts += parts

    def done(self, job: JobT) -> None:
        self.answer.set_result(job)

    def failed(self, error: Exception) -> None:
        self.answer.set_exception(error)


async def run_round(
    host: EngineHost[JobT], handle: str, number: int, make_job: Callable[[Sequence], JobT], *, content: object
) -> JobT:
    """The job of a round whose rule has no structure, once it is done; raises what it fails
    with."""
    heard: Heard[JobT] = Heard()
    host.run_round(handle, number, SamplingRule(), make_job, heard, content=content)
    return await heard.answer
