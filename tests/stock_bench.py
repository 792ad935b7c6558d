"""A verifier's worker over a fake stock engine, and short names for what a test does with it."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from slipstream.engine.hinting.hints import Hint, Source
from slipstream.engine.host import HostLimits, JobHost
from slipstream.engine.job import Job, Statement
from slipstream.engine.run_hints import HintTerms
from slipstream.engine.run_job import RunEnd, RunJob, RunLimits
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import Sequence as CachedSequence
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import SamplingRule
from slipstream.stock.start import StockSettings, stock_worker
from tests.fake_vllm import MODEL, VOCABULARY_SIZE, FakeVllm

GREEDY = SamplingRule()
SAMPLED = SamplingRule(temperature=0.8, seed=11)
HINTED = HintTerms()
TOKENIZER = Path(MODEL, "tokenizer.json").read_bytes()


class Ear:
    """Hears a run."""

    def __init__(self) -> None:
        self.choices: list[Any] = []
        self.steps: list[Any] = []
        self.tail_logprobs: list[Any] = []
        self.over: asyncio.Future[RunEnd | None] = asyncio.get_running_loop().create_future()
        self._heard = asyncio.Event()

    @property
    def tokens(self) -> list[int]:
        return [choice.token for choice in self.choices]

    def parts_done(self, parts: list[Job]) -> None:
        for job in parts:
            assert isinstance(job, RunJob)
            while job.parts:
                part = job.parts.popleft()
                self.choices += part.choices
                self.steps += part.steps
        self._heard.set()

    def done(self, job: RunJob) -> None:
        self.parts_done([job])
        self.tail_logprobs = job.tail_logprobs
        self.over.set_result(job.end)

    def failed(self, error: Exception) -> None:
        self.over.set_exception(error)
        self._heard.set()

    def repeated(self) -> None:
        raise AssertionError

    async def until_told(self, count: int) -> None:
        while len(self.choices) < count:
            assert not self.over.done(), self.over
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), 30)

    async def end(self) -> RunEnd | None:
        return await asyncio.wait_for(asyncio.shield(self.over), 30)


class Bench:
    """A host over a fake server."""

    def __init__(self, host: JobHost[Any], fake: FakeVllm) -> None:
        self.host, self.fake = host, fake
        self.numbers: dict[str, int] = {}

    def start(
        self,
        handle: str,
        prompt: Sequence[int],
        until: int,
        granted: int | None = None,
        *,
        base: int = 0,
        rule: SamplingRule = GREEDY,
        logprobs: LogprobRequest | None = None,
        hinting: HintTerms | None = HINTED,
    ) -> Ear:
        ear = Ear()
        self.host.open_handle(handle, None)
        number = self.numbers[handle] = self.numbers.get(handle, 0) + 1
        statement = Statement(base, tuple(prompt[base:]))
        limits = RunLimits(until, until if granted is None else granted)

        def make_job(sequence: CachedSequence) -> RunJob:
            return RunJob(sequence, statement, rule, limits, logprobs, hinting)

        begun = self.host.run_round(handle, number, rule, make_job, ear, content=(statement, limits, rule))
        if begun is not None:
            self._beginning = asyncio.ensure_future(begun)
        return ear

    def hint(self, handle: str, start: int, tokens: Sequence[int]) -> None:
        survivals = tuple(0.9**power for power in range(1, len(tokens) + 1))
        self.host.hint(handle, self.numbers[handle], Hint(start, tuple(tokens), survivals, Source.DRAFT, 0, start))


@asynccontextmanager
async def bench(
    fake: FakeVllm | None = None, *, patience: float = 20, timeout: float = 20, look: float = math.inf
) -> AsyncIterator[Bench]:
    with (fake or FakeVllm()).serving() as served:
        told = settings(served.url, engine=served.engine, patience=patience, timeout=timeout, look=look)
        worker = stock_worker(told, TOKENIZER, lambda _: None)
        host: JobHost[Any] = JobHost(worker, HostLimits(sweep_seconds=0.01))
        await host.start()
        served.requests.clear()
        try:
            yield Bench(host, served)
        finally:
            served.may_answer.set()
            await host.stop()
        assert not host.load.running_count


def settings(
    address: str,
    *,
    engine: str = "vllm",
    patience: float = 20,
    timeout: float = 20,
    start: float = 0,
    look: float = math.inf,
) -> StockSettings:
    return StockSettings(engine, address, MODEL, None, start, timeout, patience, BatchLimits(), 100, look_seconds=look)


def prompt_of(seed: int, length: int = 40) -> list[int]:
    return random.Random(seed).choices(range(3, VOCABULARY_SIZE), k=length)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - what it waits for is in another thread
            await asyncio.sleep(0.01)
