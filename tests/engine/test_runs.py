"""Runs over an engine host with a model whose answers can be worked out: in every order of events,
each token is told once and is the right one."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipstream.engine import run_job
from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings, next_token
from slipstream.engine.engine import Engine
from slipstream.engine.errors import (
    ContextExceededError,
    InvalidItemError,
    RoundConflictError,
    StaleRoundError,
    UnknownHandleError,
)
from slipstream.engine.hidden_heads import HiddenHeads
from slipstream.engine.host import EngineHost, HostLimits
from slipstream.engine.job import Job, Statement
from slipstream.engine.job_tree import JobTree
from slipstream.engine.model import Segment
from slipstream.engine.run_job import RunEnd, RunJob, RunLimits, RunPart
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import Sequence as CachedSequence
from slipstream.sampling.faults import LogitsNotFiniteError
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from tests.clock import Clock
from verifier_service.verifier import VerifyJob

PAPER = ArithmeticSettings(ends=0)
GREEDY = SamplingRule()
LEASE = 10.0
POISON = 200
"""A token that only prompts hold."""
_PAGE_BYTES = 16 * 8


class Backend(ArithmeticBackend):
    """Counts the tokens of each step. It can wait before each, raise, and say NaN beside POISON."""

    def __init__(self, settings: ArithmeticSettings = PAPER) -> None:
        super().__init__(settings)
        self.may_compute = threading.Event()
        self.may_compute.set()
        self.failures = 0
        self.poisoned = self.raises_on_poison = False
        self.steps: list[list[tuple[int, int]]] = []
        """First page and token count of each segment of each step."""
        self.last: list[Segment] = []
        """Segments of the last step."""

    def forward(self, segments: list[Segment]) -> Floats32:
        assert self.may_compute.wait(30)
        self.steps.append([(segment.pages[0], len(segment.tokens)) for segment in segments])
        self.last = [*segments]
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError
        logits = super().forward(segments)
        row = 0
        for segment in segments:
            has_poison = POISON in self._slots[list(segment.pages)].reshape(-1)[: segment.end]
            if self.raises_on_poison and has_poison:
                raise ZeroDivisionError
            if self.poisoned and has_poison:
                logits[row : row + segment.wanted] = math.nan
            row += segment.wanted
        return logits


def said(prompt: Sequence[int], length: int) -> list[int]:
    """The tokens after a prompt, up to a length of both."""
    tokens, total = list(prompt), sum(prompt)
    while len(tokens) < length:
        tokens.append(next_token(total, len(tokens), PAPER))
        total += tokens[-1]
    return tokens[len(prompt) :]


class Ear:
    """Hears a run, and checks that its parts follow one another."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = prompt
        self.parts: list[RunPart] = []
        self.tokens: list[int] = []
        self.over: asyncio.Future[RunEnd | None] = asyncio.get_running_loop().create_future()
        self.was_repeated = False
        self.prefilled_count = 0
        self._heard = asyncio.Event()

    def parts_done(self, parts: list[Job]) -> None:
        assert not self.over.done()
        for job in parts:
            assert isinstance(job, RunJob)
            while job.parts:
                part = job.parts.popleft()
                assert part.choices and part.position == len(self.prompt) + len(self.tokens)
                self.parts.append(part)
                self.tokens += [choice.token for choice in part.choices]
        self._heard.set()

    def done(self, job: RunJob) -> None:
        self.parts_done([job])
        assert job.length == len(self.prompt) + len(self.tokens)
        self.prefilled_count = job.prefilled_count
        self.over.set_result(job.end)

    def failed(self, error: Exception) -> None:
        self.over.set_exception(error)
        self._heard.set()

    def repeated(self) -> None:
        self.was_repeated = True

    async def until_told(self, count: int) -> None:
        while len(self.tokens) < count:
            assert not self.over.done(), self.over
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), 30)

    async def end(self) -> RunEnd | None:
        """How the run has ended, once its text was compared. Raises its error."""
        try:
            return await asyncio.wait_for(asyncio.shield(self.over), 30)
        finally:
            self.check_text()

    def check_text(self) -> None:
        assert self.tokens == said(self.prompt, len(self.prompt) + len(self.tokens))

    def check_times(self, *, without_gap: bool = False) -> None:
        """The parts' times follow one another and do not overlap."""
        for part in self.parts:
            timing = part.timing
            assert timing.started is not None and timing.forward_count > 0
            assert timing.arrived <= timing.started <= timing.finished
            assert 0 <= timing.prefill <= timing.finished - timing.arrived
        for one, other in zip(self.parts, self.parts[1:], strict=False):
            assert one.timing.finished <= other.timing.arrived
            assert not without_gap or one.timing.finished == other.timing.arrived


class Bench:
    """A host, its backend, and short names for what a test does with them."""

    def __init__(self, host: EngineHost[Any], backend: Backend, clock: Clock) -> None:
        self.host, self.backend, self.clock = host, backend, clock
        self.numbers: dict[str, int] = {}

    def start(
        self,
        handle: str,
        prompt: Sequence[int],
        until: int,
        granted: int | None = None,
        *,
        base: int = 0,
        number: int | None = None,
        rule: SamplingRule = GREEDY,
        logprobs: LogprobRequest | None = None,
    ) -> Ear:
        """Start a run whose rule has no structure."""
        ear = Ear(prompt)
        self.host.open_handle(handle, None)
        number = self.numbers[handle] = self.numbers.get(handle, 0) + 1 if number is None else number
        statement = Statement(base, tuple(prompt[base:]))
        limits = RunLimits(until, until if granted is None else granted)

        def make_job(sequence: CachedSequence) -> RunJob:
            return RunJob(sequence, statement, rule, limits, logprobs)

        content = (statement, limits, rule, logprobs)
        assert self.host.run_round(handle, number, rule, make_job, ear, content=content) is None
        return ear

    def grant(self, handle: str, length: int) -> None:
        self.host.grant(handle, self.numbers[handle], length)

    def stop(self, handle: str) -> None:
        self.host.stop_run(handle, self.numbers[handle])

    async def verify(self, handle: str, number: int, prompt: Sequence[int], proposal: Sequence[int]) -> VerifyJob:
        answer: asyncio.Future[VerifyJob] = asyncio.get_running_loop().create_future()
        self.host.open_handle(handle, None)
        self.host.run_round(
            handle,
            number,
            GREEDY,
            lambda sequence: VerifyJob(sequence, Statement(0, tuple(prompt)), proposal, GREEDY),
            _Once(answer),
            content=(number, tuple(proposal)),
        )
        return await answer

    async def quiet(self) -> None:
        """Nothing is at work any more."""
        for _ in range(3000):
            if not self.host.load.unfinished_count and not self.host.load.running_count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.host.load)

    async def all_closed(self) -> None:
        """Close all handles: then no page is held."""
        for handle in [*self.host._sequences]:
            self.host.close_handle(handle)
        await self.quiet()
        for _ in range(1000):
            if not self.host.load.held_page_count:
                break
            await asyncio.sleep(0.01)
        assert self.host.load.held_page_count == 0


class _Once:
    def __init__(self, answer: asyncio.Future[VerifyJob]) -> None:
        self._answer = answer

    def parts_done(self, parts: list[Job]) -> None:
        raise AssertionError

    def done(self, job: VerifyJob) -> None:
        self._answer.set_result(job)

    def failed(self, error: Exception) -> None:
        self._answer.set_exception(error)

    def repeated(self) -> None:
        raise AssertionError


@asynccontextmanager
async def bench(
    page_count: int = 4000,
    batch_limits: BatchLimits | None = None,
    host_limits: HostLimits | None = None,
    settings: ArithmeticSettings = PAPER,
    profiled: bool = True,
    heads: HiddenHeads | None = None,
) -> AsyncIterator[Bench]:
    backend, clock = Backend(settings), Clock()

    def load() -> Engine:
        engine = Engine(backend, kv_memory_mib=page_count * _PAGE_BYTES / 2**20, heads=heads)
        if profiled:
            engine.profile(0.001)
        backend.steps.clear()
        return engine

    limits = host_limits or HostLimits(default_lease_seconds=LEASE, sweep_seconds=0.01)
    host: EngineHost[Any] = EngineHost(load, batch_limits or BatchLimits(), limits, clock=clock)
    await host.start()
    made = Bench(host, backend, clock)
    try:
        yield made
        await made.all_closed()
    finally:
        backend.may_compute.set()
        await host.stop()
    host.engine.pool.check()
    assert not host._asked and not host._rounds and not host._early


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, POISON), k=length)


@pytest.mark.parametrize("profiled", [False, True])
async def test_a_run_says_what_the_model_says_and_each_token_once(profiled: bool) -> None:
    async with bench(profiled=profiled) as it:
        ear = it.start("a", prompt_of(1, 40), 400)
        assert await ear.end() is RunEnd.UNTIL
        assert len(ear.tokens) == 360
        assert len(ear.parts[0].choices) == 1  # the first token comes at once
        ear.check_times()


async def test_a_run_pauses_where_its_grant_ends() -> None:
    async with bench() as it:
        ear = it.start("a", prompt_of(1, 20), 200, 50)
        await ear.until_told(30)
        await it.quiet()
        assert len(ear.tokens) == 30
        it.grant("a", 40)  # less than before changes nothing
        it.host.grant("a", 7, 100)  # nor does one of another round
        it.grant("a", 51)
        await ear.until_told(31)
        await it.quiet()
        assert len(ear.tokens) == 31
        it.grant("a", 2**31 - 1)
        assert await ear.end() is RunEnd.UNTIL
        assert len(ear.tokens) == 180
        assert sum(count for step in it.backend.steps for _, count in step) == 199  # nothing is read twice
        ear.check_times()


async def test_a_stop_ends_a_run_and_keeps_its_cache() -> None:
    async with bench() as it:
        it.backend.may_compute.clear()
        ear = it.start("a", prompt_of(1, 20), 2000)
        it.backend.may_compute.set()
        await ear.until_told(5)
        it.stop("a")
        assert await ear.end() is RunEnd.STOPPED
        it.stop("a")
        it.grant("a", 4000)
        all_tokens = [*ear.prompt, *ear.tokens]
        later = it.start("a", all_tokens, len(all_tokens) + 10, base=len(all_tokens) - 1)
        assert await later.end() is RunEnd.UNTIL


async def test_a_stop_of_a_paused_run_ends_it_at_once() -> None:
    async with bench() as it:
        ear = it.start("a", prompt_of(1, 20), 200, 30)
        await ear.until_told(10)
        await it.quiet()
        it.stop("a")
        assert ear.over.done()
        assert await ear.end() is RunEnd.STOPPED
        assert len(ear.tokens) == 10


async def test_a_stop_before_the_first_step_ends_the_run_without_a_token() -> None:
    async with bench() as it:
        it.backend.may_compute.clear()
        first = it.start("b", prompt_of(2, 20), 30)
        ear = it.start("a", prompt_of(1, 20), 200)
        it.stop("a")
        it.backend.may_compute.set()
        assert await ear.end() is RunEnd.STOPPED
        assert await first.end() is RunEnd.UNTIL


async def test_a_repeated_start_is_not_told_again_and_other_content_is_refused() -> None:
    async with bench() as it:
        ear = it.start("a", prompt_of(1, 20), 200, 30)
        again = it.start("a", prompt_of(1, 20), 200, 30, number=1)
        assert again.was_repeated
        with pytest.raises(RoundConflictError):
            it.start("a", prompt_of(1, 20), 201, 30, number=1)
        with pytest.raises(StaleRoundError):
            it.start("a", prompt_of(1, 20), 200, 30, number=0)
        it.numbers["a"] = 1
        it.grant("a", 200)
        assert await ear.end() is RunEnd.UNTIL
        assert not again.over.done() and not again.tokens


async def test_a_newer_run_ends_an_older_one_at_work_or_paused() -> None:
    async with bench() as it:
        paused = it.start("a", prompt_of(1, 20), 200, 30)
        await paused.until_told(10)
        await it.quiet()
        running = it.start("a", [*paused.prompt, *paused.tokens], 3000, base=29)
        with pytest.raises(StaleRoundError):
            await paused.end()
        await running.until_told(3)
        last = it.start("a", [*running.prompt, *running.tokens[:2]], 100, base=20)
        with pytest.raises(StaleRoundError):
            await running.end()
        assert await last.end() is RunEnd.UNTIL


async def test_an_end_token_ends_a_run_and_no_later_one_is_told() -> None:
    async with bench() as it:
        expected = said(prompt_of(1, 20), 120)
        for end in (expected[0], expected[1], expected[50]):
            ear = it.start("a", prompt_of(1, 20), 120, rule=SamplingRule(end_token_ids=(end,)))
            assert await ear.end() is RunEnd.TOKEN
            assert ear.tokens == expected[: expected.index(end) + 1]


async def test_limits_that_do_not_fit_fail_the_run() -> None:
    async with bench(settings=ArithmeticSettings(ends=0, context=100)) as it:
        with pytest.raises(ContextExceededError):
            await it.start("a", prompt_of(1, 20), 102).end()
        assert await it.start("a", prompt_of(1, 20), 101).end() is RunEnd.UNTIL
        with pytest.raises(InvalidItemError):
            await it.start("b", [5, 259], 30).end()


async def test_a_closed_handle_ends_its_run_at_work_or_paused() -> None:
    async with bench() as it:
        for granted in (30, 4000):
            ear = it.start(f"a{granted}", prompt_of(1, 20), 4000, granted)
            await ear.until_told(10)
            if granted == 30:
                await it.quiet()
            it.host.close_handle(f"a{granted}")
            it.grant(f"a{granted}", 4000)
            with pytest.raises(UnknownHandleError):
                await ear.end()


async def test_a_paused_run_has_a_lease_and_a_grant_renews_it() -> None:
    async with bench() as it:
        ear = it.start("a", prompt_of(1, 20), 200, 30)
        await ear.until_told(10)
        await it.quiet()
        it.clock.now += LEASE - 1
        it.grant("a", 31)
        await ear.until_told(11)
        await it.quiet()
        it.clock.now += LEASE - 1
        await asyncio.sleep(0.05)
        assert not ear.over.done()
        it.clock.now += 1
        with pytest.raises(UnknownHandleError):
            await ear.end()


async def test_a_paused_run_whose_handle_is_evicted_fails() -> None:
    limits = HostLimits(max_sequence_count=1, sweep_seconds=10)
    async with bench(host_limits=limits) as it:
        ear = it.start("a", prompt_of(1, 20), 200, 30)
        await ear.until_told(10)
        await it.quiet()
        other = it.start("b", prompt_of(2, 20), 60)
        with pytest.raises(UnknownHandleError):
            await ear.end()
        assert await other.end() is RunEnd.UNTIL


async def test_a_paused_run_reads_its_text_again_if_another_one_took_its_pages() -> None:
    async with bench(page_count=20) as it:
        paused = it.start("a", prompt_of(1, 100), 300, 160)
        await paused.until_told(60)
        await it.quiet()
        assert await it.start("b", prompt_of(2, 100), 300).end() is RunEnd.UNTIL
        it.grant("a", 300)
        assert await paused.end() is RunEnd.UNTIL
        paused.check_times()


async def test_what_a_run_has_read_of_its_tail_is_told_however_often_it_begins_again() -> None:
    async with bench(page_count=20) as it:
        ears = [it.start(name, prompt_of(seed, 100), 300, 160) for seed, name in enumerate("ab")]
        for ear in ears:
            await ear.until_told(60)
        await it.quiet()
        for name, ear in zip("ab", ears, strict=True):
            it.grant(name, 300)
            assert await ear.end() is RunEnd.UNTIL
            assert ear.prefilled_count == 100


async def test_two_runs_with_pages_for_one_and_a_half_do_not_take_turns_at_reading() -> None:
    async with bench(page_count=30) as it:
        first, second = (it.start(name, prompt_of(seed, 100), 320) for seed, name in enumerate("ab"))
        assert await first.end() is RunEnd.UNTIL
        assert await second.end() is RunEnd.UNTIL
        first.check_times(without_gap=True)
        second.check_times(without_gap=True)
        assert it.host.load.preempted_count <= 2
        assert sum(count for step in it.backend.steps for _, count in step) < 3 * 320


@pytest.mark.parametrize("seed", range(3))
async def test_runs_that_give_their_pages_away_say_the_same(seed: int) -> None:
    random_ = random.Random(seed)
    lengths = [random_.randint(20, 400) for _ in range(16)]
    need = sum(-(-(length + 200) // 16) for length in lengths)
    async with bench(page_count=int(0.65 * need)) as it:
        ears = [it.start(str(n), prompt_of(n, length), length + 200) for n, length in enumerate(lengths)]
        assert [await ear.end() for ear in ears] == [RunEnd.UNTIL] * 16
        for ear in ears:
            ear.check_times(without_gap=True)
        assert it.host.load.preempted_count


async def test_a_run_without_pages_goes_on_though_new_ones_keep_coming() -> None:
    async with bench(page_count=30) as it:
        count = 0

        async def newcomers(name: str, until: int) -> None:
            nonlocal count
            while not waiting.over.done():
                assert count < 30
                count += 1
                ear = it.start(f"{name}{count}", prompt_of(count, 40), until)
                assert await ear.end() is RunEnd.UNTIL

        first = it.start("first", prompt_of(1, 100), 320)
        waiting = it.start("waiting", prompt_of(2, 100), 470)
        await asyncio.gather(newcomers("a", 160), newcomers("b", 127))
        assert [await ear.end() for ear in (first, waiting)] == [RunEnd.UNTIL] * 2


async def test_the_oldest_run_gives_way_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though at each step some newer ones come before it."""
    preempted: list[str] = []
    preempt = JobTree.preempt

    def spied(tree: JobTree, job: Job) -> None:
        preempted.append(job.sequence.handle)
        preempt(tree, job)

    monkeypatch.setattr(JobTree, "preempt", spied)
    async with bench(page_count=40, batch_limits=BatchLimits(max_step_tokens=5), profiled=False) as it:
        it.backend.may_compute.clear()
        ears = [it.start(str(n), prompt_of(n, 4), 200) for n in range(8)]
        it.backend.may_compute.set()
        assert [await ear.end() for ear in ears] == [RunEnd.UNTIL] * 8
    assert preempted and "0" not in preempted


async def test_a_run_that_loses_its_pages_tells_first_what_it_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_job, "PART_SECONDS", 1000.0)
    async with bench(page_count=30, profiled=False) as it:
        first, second = (it.start(name, prompt_of(seed, 100), 320) for seed, name in enumerate("ab"))
        assert await first.end() is RunEnd.UNTIL
        assert len(second.tokens) > 100
        assert await second.end() is RunEnd.UNTIL


async def test_a_prompt_during_a_pause_is_not_in_a_runs_times() -> None:
    settings = ArithmeticSettings(ends=0, row_us=20)
    async with bench(settings=settings) as it:
        ear = it.start("a", prompt_of(1, 20), 60, 40)
        await ear.until_told(20)
        await it.quiet()
        assert await it.start("b", prompt_of(2, 2000), 2001).end() is RunEnd.UNTIL
        it.grant("a", 60)
        assert await ear.end() is RunEnd.UNTIL
        ear.check_times()


@pytest.mark.parametrize("seed", range(4))
async def test_random_grants_stops_restarts_and_closes(seed: int) -> None:
    """Beside rounds and prompts, with too few pages for all."""
    random_ = random.Random(seed)
    async with bench(page_count=120) as it:

        async def chat(name: str) -> None:
            text = prompt_of(random_.randrange(100), random_.randint(1, 120))
            for _ in range(6):
                until = min(len(text) + random_.randint(1, 120), 600)
                if random_.random() < 0.2:
                    number = it.numbers[name] = it.numbers.get(name, 0) + 1
                    right = said(text, len(text) + 5)
                    proposal = [*right[:3], 4, 4]
                    job = await it.verify(name, number, text, proposal)
                    assert [*proposal[: job.accepted_count], job.next_token] == right[: job.accepted_count + 1]
                    text += right[: job.accepted_count + 1]
                    continue
                ear = it.start(name, text, until, len(text) + random_.randint(1, 40))
                while not ear.over.done():
                    act = random_.random()
                    if act < 0.1:
                        it.stop(name)
                    elif act < 0.2:
                        break  # the next start ends it
                    else:
                        it.grant(name, len(text) + len(ear.tokens) + random_.randint(1, 60))
                    await asyncio.sleep(random_.choice((0, 0.001, 0.003)))
                ear.check_text()
                text = text + ear.tokens
                if random_.random() < 0.1:
                    it.host.close_handle(name)
                    name += "'"

        await asyncio.gather(*(chat(str(number)) for number in range(12)))


async def test_more_runs_than_rows_all_take_part_in_every_few_steps() -> None:
    async with bench(page_count=6000, profiled=False) as it:
        it.backend.may_compute.clear()
        ears = [it.start(f"r{n}", prompt_of(n, 3), 60) for n in range(600)]
        it.backend.may_compute.set()
        for ear in ears:
            assert await ear.end() is RunEnd.UNTIL
        assert max(sum(count for _, count in step) for step in it.backend.steps) <= 512
        assert longest_absence(it.backend.steps[5:-5]) <= 3


async def test_runs_and_prompts_share_the_rows_of_a_step() -> None:
    async with bench(page_count=8000, profiled=False) as it:
        it.backend.may_compute.clear()
        ears = [it.start(f"r{n}", prompt_of(n, 3), 40) for n in range(450)]
        ears += [it.start(f"p{n}", prompt_of(n, 2000), 2010) for n in range(4)]
        it.backend.may_compute.set()
        for ear in ears:
            assert await ear.end() is RunEnd.UNTIL
        assert longest_absence(it.backend.steps[5:-5]) <= 4


def longest_absence(steps: list[list[tuple[int, int]]]) -> int:
    """Most steps in a row that a sequence sat out between two of its own."""
    last: dict[int, int] = {}
    longest = 0
    for index, step in enumerate(steps):
        for page, _ in step:
            if page in last:
                longest = max(longest, index - last[page] - 1)
            last[page] = index
    return longest


async def test_log_probabilities_of_prompt_and_choices_come_with_each_token() -> None:
    async with bench() as it:
        ear = it.start("a", prompt_of(1, 50), 90, 70, logprobs=LogprobRequest(2, prompt=True))
        await ear.until_told(20)
        it.grant("a", 90)
        assert await ear.end() is RunEnd.UNTIL
        choices = [choice for part in ear.parts for choice in part.choices]
        assert all(choice.logprobs is not None and choice.logprobs.token == choice.token for choice in choices)


async def test_penalties_choose_what_rounds_choose() -> None:
    rule = SamplingRule(repetition_penalty=4.0, presence_penalty=1.0, temperature=0.8, seed=5)
    settings = ArithmeticSettings(ends=0, agreement=0.7, spread=0.5)
    async with bench(settings=settings) as it:
        prompt = prompt_of(1, 30)
        text = list(prompt)
        for number in range(1, 41):
            answer: asyncio.Future[VerifyJob] = asyncio.get_running_loop().create_future()
            it.host.open_handle("rounds", None)
            it.host.run_round(
                "rounds",
                number,
                rule,
                lambda sequence: VerifyJob(sequence, Statement(0, tuple(text)), (), rule),
                _Once(answer),
                content=number,
            )
            text.append((await answer).next_token)
        ear = it.start("run", prompt, 70, 45, rule=rule)
        it.grant("run", 70)
        assert await asyncio.wait_for(ear.over, 30) is RunEnd.UNTIL
        assert ear.tokens == text[30:]


async def test_logits_that_are_not_finite_fail_one_run_only() -> None:
    async with bench() as it:
        it.backend.poisoned = True
        healthy = it.start("a", prompt_of(1, 20), 120)
        with pytest.raises(LogitsNotFiniteError):
            await it.start("b", [POISON, *prompt_of(1, 20)], 120).end()
        assert await healthy.end() is RunEnd.UNTIL
        it.backend.poisoned = False
        assert await it.start("b", [POISON, *prompt_of(1, 20)], 120).end() is RunEnd.UNTIL


async def test_a_forward_that_raises_once_changes_no_text() -> None:
    async with bench() as it:
        ears = [it.start(str(n), prompt_of(n, 20), 400) for n in range(3)]
        for ear in ears:
            await ear.until_told(2)
        it.backend.failures = 1
        assert [await ear.end() for ear in ears] == [RunEnd.UNTIL] * 3


async def test_a_run_that_makes_forwards_raise_ends_alone() -> None:
    async with bench() as it:
        it.backend.may_compute.clear()
        it.backend.raises_on_poison = True
        prompts = [prompt for n in range(20) if POISON not in said(prompt := prompt_of(n, 20), 60)]
        ears = [it.start(str(n), prompts[n], 60) for n in range(3)]
        poison = it.start("p", [*prompt_of(9, 20), POISON], 60)
        ears += [it.start(str(n), prompts[n], 60) for n in range(3, 6)]
        it.backend.may_compute.set()
        with pytest.raises(ZeroDivisionError):
            await poison.end()
        assert [await ear.end() for ear in ears] == [RunEnd.UNTIL] * 6


async def test_a_run_that_fails_alone_ends_after_the_tokens_before_it() -> None:
    async with bench() as it:
        ear = it.start("a", prompt_of(1, 20), 4000)
        await ear.until_told(2)
        it.backend.failures = 1
        with pytest.raises(ZeroDivisionError):
            await ear.end()
        assert await it.start("a", prompt_of(1, 20), 60).end() is RunEnd.UNTIL


async def test_forwards_that_always_fail_end_all_runs() -> None:
    async with bench() as it:
        ears = [it.start(str(n), prompt_of(n, 20), 4000) for n in range(3)]
        for ear in ears:
            await ear.until_told(2)
        it.backend.failures = 10**6
        for ear in ears:
            with pytest.raises(ZeroDivisionError):
                await ear.end()
        it.backend.failures = 0


class _SlowCompiler:
    """Compiles once it may."""

    def __init__(self) -> None:
        self.may_compile = threading.Event()

    def validate(self, structure: Structure, byte_count: int) -> None:
        assert self.may_compile.wait(30)


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("act", ["grant", "stop", "close"])
async def test_what_comes_while_a_structure_compiles_is_not_lost(act: str, starts: int) -> None:
    rule = SamplingRule(structure=Structure(StructureKind.REGEX, "a*"))
    async with bench() as it:
        compiler = _SlowCompiler()
        it.host.engine.matchers.compiler = compiler  # type: ignore[assignment]
        it.host.open_handle("a", None)
        ears = [Ear(prompt_of(1, 20)) for _ in range(starts)]

        def make_job(sequence: CachedSequence) -> RunJob:  # only the host reads the structure here
            return RunJob(sequence, Statement(0, tuple(ears[0].prompt)), GREEDY, RunLimits(90, 30))

        begun = []
        for ear in ears:
            rest = it.host.run_round("a", 1, rule, make_job, ear, content=0)
            assert rest is not None
            begun.append(asyncio.create_task(rest))
            await asyncio.sleep(0)
        if act == "close":
            it.host.close_handle("a")
        else:
            it.host.grant("a", 1, 90) if act == "grant" else it.host.stop_run("a", 1)
        compiler.may_compile.set()
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        if act == "close":
            assert all(isinstance(outcome, UnknownHandleError) for outcome in outcomes)
        else:
            assert outcomes == [None] * starts
            teller = ears[0] if not ears[0].was_repeated else ears[1]
            assert await teller.end() is (RunEnd.UNTIL if act == "grant" else RunEnd.STOPPED)
        del outcomes, begun, rest  # their frames hold what came early


async def test_a_start_that_is_dropped_before_it_begins_leaves_nothing() -> None:
    rule = SamplingRule(structure=Structure(StructureKind.REGEX, "a*"))
    async with bench() as it:
        it.host.engine.matchers.compiler = _SlowCompiler()  # type: ignore[assignment]
        it.host.open_handle("a", None)

        def make_job(sequence: CachedSequence) -> RunJob:
            raise AssertionError

        begun = it.host.run_round("a", 1, rule, make_job, Ear(prompt_of(1, 20)), content=0)
        assert begun is not None and len(it.host._early) == 1
        begun.close()
        del begun
        assert not it.host._early
