"""Guesses over an engine host with a model whose answers can be worked out: they follow the
commits, lose nothing when those agree, and end where they are worth no step."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from tokenizers import Tokenizer

from draft_service.committed import CommittedText
from draft_service.guessing import GuessJob, GuessPart
from draft_service.lines import GuessLimits
from draft_service.worth import DraftWorth
from slipstream.engine.arithmetic import ArithmeticSettings
from slipstream.engine.errors import ContextExceededError, SequenceTooShortError, StaleRoundError
from slipstream.engine.hinting.hints import MOST_TOKENS, Hint, Source
from slipstream.engine.job import Job
from slipstream.engine.sequence import Sequence as CachedSequence
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_compiler import StructureCompiler
from tests.engine.test_runs import GREEDY, LEASE, PAPER, Bench, bench, prompt_of, said

FAR = 10_000


class Ear:
    """Starts guesses at a handle, tells them of commits, and keeps the hints."""

    def __init__(self, it: Bench, worth: DraftWorth, handle: str, prompt: Sequence[int]) -> None:
        self.it, self.worth, self.handle = it, worth, handle
        self.committed = list(prompt)
        self.parts: list[GuessPart] = []
        self.hints: list[Hint] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard = asyncio.Event()

    def start(
        self,
        until: int = FAR,
        least: int = 0,
        price: float = 0.0,
        rule: SamplingRule = GREEDY,
        base: int = 0,
    ) -> Ear:
        self.it.host.open_handle(self.handle, None)
        number = self.it.numbers[self.handle] = self.it.numbers.get(self.handle, 0) + 1
        self.text = CommittedText(base, self.committed[base:], price)

        def make_job(sequence: CachedSequence) -> GuessJob:
            self.job = GuessJob(sequence, rule, self.text, GuessLimits(until, least), self.worth)
            return self.job

        begun = self.it.host.run_round(self.handle, number, rule, make_job, self, content=object())
        self.number = number
        self.compiled = None if begun is None else asyncio.ensure_future(begun)
        return self

    def commit(self, tokens: Sequence[int]) -> None:
        contradicts = self.text.add(len(self.committed), tokens)
        self.committed += tokens
        self.it.host.commit(self.handle, self.number, at_once=contradicts)

    def parts_done(self, jobs: list[Job]) -> None:
        for job in jobs:
            assert isinstance(job, GuessJob)
            while job.parts:
                part = job.parts.popleft()
                for hint in part.hints.values():
                    assert hint.length_seen == hint.start <= len(self.committed)
                    self.hints.append(hint)
                assert part.timing.finished >= part.timing.arrived
                assert part.timing.forward_count > 0 or not part.hints
                self.parts.append(part)
        self._heard.set()

    def done(self, job: GuessJob) -> None:
        self.parts_done([job])
        self.over.set_result(None)

    def failed(self, error: Exception) -> None:
        self.over.set_exception(error)
        self._heard.set()

    def repeated(self) -> None:
        raise AssertionError

    @property
    def last(self) -> Hint:
        return self.hints[-1]

    def says(self, length: int) -> bool:
        """True if the last hint begins at the committed tokens, has so many tokens, and all are the
        model's."""
        if not self.hints or self.last.start != len(self.committed) or len(self.last.tokens) != length:
            return False
        assert list(self.last.tokens) == said(self.committed, len(self.committed) + length)
        return True

    async def until_said(self, length: int) -> None:
        await self.until(lambda: self.says(length))

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a hint makes something true."""
        while not is_so():
            assert not self.over.done(), self.over
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), 30)

    async def until_rested(self) -> int:
        """Wait for the last hint before a rest, and return its length. All its tokens are right."""
        await self.until(lambda: bool(self.hints) and self.last.start == len(self.committed) and self.rests)
        assert self.says(len(self.last.tokens))
        return len(self.last.tokens)

    @property
    def rests(self) -> bool:
        return bool(self.hints) and self.last.next_due is None

    async def until_heard(self) -> None:
        """Wait for a hint that begins at the committed tokens."""
        await self.until(lambda: bool(self.hints) and self.last.start == len(self.committed))


@asynccontextmanager
async def guessing(
    prompt: Sequence[int], handle: str = "a", settings: ArithmeticSettings = PAPER, page_count: int = 4000
) -> AsyncIterator[tuple[Bench, Ear]]:
    async with bench(page_count, settings=settings) as it:
        yield it, Ear(it, DraftWorth(7, it.host.step_times), handle, prompt)


class Gate(threading.Event):
    """Says when a forward waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.reached.set()
        return super().wait(timeout)


def rows(it: Bench) -> int:
    """Tokens that went through a forward."""
    return sum(count for step in it.backend.steps for _, count in step)


async def test_guesses_end_at_the_horizon_and_rest_there() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        ear.start()
        await ear.until_said(MOST_TOKENS)
        await it.quiet()
        assert rows(it) == 40 + MOST_TOKENS - 1
        assert ear.last.next_due is None
        assert (ear.last.source, ear.last.source_id) == (Source.DRAFT, 7)
        assert not ear.over.done()


async def test_commits_that_agree_lose_nothing() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        ear.start()
        rng = random.Random(1)
        await ear.until_said(MOST_TOKENS)
        for _ in range(30):
            ear.commit(said(ear.committed, len(ear.committed) + rng.randint(1, 5)))
            if rng.random() < 0.5:
                await ear.until_said(MOST_TOKENS)
        await ear.until_said(MOST_TOKENS)
        await it.quiet()
        assert rows(it) == len(ear.committed) + MOST_TOKENS - 1  # nothing is read twice


@pytest.mark.parametrize("rests", [False, True])
async def test_a_commit_that_contradicts_keeps_what_is_common(rests: bool) -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        ear.start()
        await (ear.until_said(MOST_TOKENS) if rests else ear.until_heard())
        if rests:
            await it.quiet()
        agreed = said(ear.committed, len(ear.committed) + 5)
        before = rows(it)
        ear.commit([*agreed, 3, 4])
        length = await ear.until_rested()
        await it.quiet()
        assert length > 20  # one wrong guess does not end its credit
        if rests:
            assert rows(it) == before + 2 + length - 1


async def test_a_multi_step_run_ends_for_a_commit_that_contradicts() -> None:
    async with guessing(prompt_of(1, 20)) as (it, ear):
        ear.start()
        await ear.until_said(MOST_TOKENS)
        await it.quiet()
        it.backend.may_compute = gate = Gate()
        ear.worth.step_seconds = 1e-9  # the next run is as long as it may be
        known = len(ear.parts)
        ear.commit(said(ear.committed, len(ear.committed) + 40))
        await asyncio.to_thread(gate.reached.wait, 30)
        ear.commit([3])
        gate.set()
        await ear.until_heard()
        hint = next(hint for hint in ear.hints if hint.start == len(ear.committed))
        first = next(part for part in ear.parts if hint in part.hints.values())
        told = ear.parts[known : ear.parts.index(first) + 1]
        # Of the 40 that were planned, hardly any was computed.
        assert sum(part.timing.forward_count for part in told) <= len(hint.tokens) + 3


async def test_random_commits_leave_the_right_tokens_and_all_pages() -> None:
    """Commits that agree, contradict, come twice and overtake, for several handles that take pages
    from one another, stop and start again."""
    rng = random.Random(3)
    async with bench(60) as it:
        worth = DraftWorth(7, it.host.step_times)
        ears = [Ear(it, worth, f"h{index}", prompt_of(index, rng.randint(1, 60))).start() for index in range(6)]
        for _ in range(400):
            index = rng.randrange(6)
            ear = ears[index]
            right = said(ear.committed, len(ear.committed) + rng.randint(1, 6))
            tokens = rng.choice([right, right, [*right, rng.randint(3, 250)], [rng.randint(3, 250)]])
            ear.commit(tokens)
            if rng.random() < 0.1:
                repeated = ear.committed[-3:]
                assert not ear.text.add(len(ear.committed) - 3, repeated)
            if rng.random() < 0.05:
                it.host.stop_run(ear.handle, ear.number)
                await asyncio.wait_for(ear.over, 30)
                ears[index] = Ear(it, worth, ear.handle, ear.committed).start()
            if len(ear.committed) > 150:
                it.host.stop_run(ears[index].handle, ears[index].number)
                await asyncio.wait_for(ears[index].over, 30)
                ears[index] = Ear(it, worth, ear.handle, ear.committed[:20]).start()
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0, 0.001, 0.004]))
        for ear in ears:
            ear.commit([3])
            await ear.until_heard()
            assert ear.says(len(ear.last.tokens))
            it.host.stop_run(ear.handle, ear.number)
            await asyncio.wait_for(ear.over, 30)


async def test_pages_of_resting_guesses_may_be_taken() -> None:
    async with guessing(prompt_of(1, 40), page_count=16) as (it, ear):
        ear.start()
        await ear.until_said(MOST_TOKENS)
        await it.quiet()
        other = Ear(it, ear.worth, "b", prompt_of(2, 150)).start(until=220)
        await other.until_said(MOST_TOKENS)
        await it.quiet()
        assert not it.host._sequences["a"].pages
        ear.commit(said(ear.committed, len(ear.committed) + 3))
        await ear.until_said(MOST_TOKENS)


async def test_a_lease_runs_down_at_the_horizon_and_a_commit_renews_it() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        ear.start()
        await ear.until_said(MOST_TOKENS)
        await it.quiet()
        for _ in range(3):
            it.clock.now += 0.7 * LEASE
            ear.commit(said(ear.committed, len(ear.committed) + 1))
            await ear.until_said(MOST_TOKENS)
            await it.quiet()
        it.clock.now += 1.1 * LEASE
        with pytest.raises(Exception, match="closed"):
            await asyncio.wait_for(ear.over, 30)


async def test_nothing_follows_an_end_token() -> None:
    prompt = prompt_of(1, 40)
    text = said(prompt, 100)
    at = next(index for index in range(3, 60) if text[index] not in text[:index])
    async with guessing(prompt) as (it, ear):
        ear.start(rule=SamplingRule(end_token_ids=(text[at],)))
        await ear.until_said(at + 1)
        await it.quiet()
        count = len(it.backend.steps)
        ear.commit(text[: at + 1])
        await it.quiet()
        assert len(it.backend.steps) == count  # the text has ended


async def test_guesses_follow_a_structure_and_end_with_it() -> None:
    tokenizer_json = (embedded_directory("draft") / "tokenizer.json").read_bytes()
    digits = Tokenizer.from_str(tokenizer_json.decode())
    prompt = prompt_of(1, 20)
    rule = SamplingRule(
        structure=Structure(StructureKind.REGEX, "[0-9]{8}"), first_generated_position=20, end_token_ids=(2,)
    )
    async with guessing(prompt, settings=ArithmeticSettings(vocabulary=4096)) as (it, ear):
        it.host.engine.matchers.compiler = StructureCompiler(tokenizer_json, 4096, [2])
        ear.start(rule=rule, least=12)
        await ear.until(lambda: bool(ear.hints) and ear.rests)
        assert ear.last.tokens[-1] == 2
        assert len(digits.decode(ear.last.tokens[:-1])) == 8
        count = len(it.backend.steps)
        ear.commit(ear.last.tokens[:2])
        await it.quiet()
        assert len(it.backend.steps) == count  # all is said
        other = next(token for token in digits.encode("7").ids)
        ear.commit([other])
        await ear.until(lambda: ear.last.start == 23 and ear.rests)
        assert len(digits.decode([*ear.committed[20:], *ear.last.tokens[:-1]])) == 8
        ear.commit(ear.last.tokens)
        await it.quiet()
        assert not ear.over.done()


async def test_no_guess_goes_beyond_the_runs_end() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        ear.start(until=50)
        await ear.until_said(10)
        await it.quiet()
        assert rows(it) == 49


def never_right(ear: Ear) -> None:
    """Let the draft be wrong for long."""
    for _ in range(400):
        ear.worth.calibration.judge(ear.worth.maker, 1.0, False)


async def test_a_draft_that_is_never_right_stands_still_and_probes() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        never_right(ear)
        ear.worth.probes.record_step(asyncio.get_running_loop().time() + 1e6)  # no probe is due
        ear.start()
        await it.quiet()
        ear.commit([3])
        await it.quiet()
        assert not it.backend.steps
        assert [part.hints for part in ear.parts] == [{}]  # its rest is told once
        ear.worth.probes.record_step(-1e6)
        ear.commit([4])
        await ear.until_said(1)
        await it.quiet()
        assert rows(it) == 42  # the tail is read now, and one token is guessed


async def test_a_fixed_length_is_guessed_whatever_it_is_worth() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        never_right(ear)
        ear.start(least=5)
        await ear.until_said(5)
        await it.quiet()
        ear.commit([3])
        await ear.until_said(5)


async def test_a_draft_stands_still_where_the_target_makes_more_of_the_time() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        ear.worth.probes.record_step(asyncio.get_running_loop().time() + 1e6)
        ear.start(price=1e9)
        await it.quiet()
        assert not it.backend.steps
        ear.text.price = 0.0
        ear.commit([3])
        await ear.until_said(MOST_TOKENS)


async def test_unlikely_guesses_end_early() -> None:
    async with guessing(prompt_of(1, 40)) as (_, ear):
        for index in range(2000):
            ear.worth.calibration.judge(ear.worth.maker, 1.0, index % 2 == 0)
        ear.start()
        assert 4 <= await ear.until_rested() <= 10  # half to the seventh is less than a hundredth


async def test_a_newer_start_ends_the_older_guesses() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        ear.start()
        for rests in (False, True):
            await (ear.until_said(MOST_TOKENS) if rests else ear.until_heard())
            newer = Ear(it, ear.worth, "a", ear.committed).start()
            with pytest.raises(StaleRoundError):
                await asyncio.wait_for(ear.over, 30)
            await newer.until_said(MOST_TOKENS)
            ear = newer
        it.host.stop_run("a", ear.number)
        await asyncio.wait_for(ear.over, 30)
        assert ear.job.lines.guess_count >= MOST_TOKENS


async def test_a_newer_start_ends_guesses_that_come_to_rest() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        it.backend.may_compute = gate = Gate()
        ear.start(until=41)
        await asyncio.to_thread(gate.reached.wait, 30)
        newer = Ear(it, ear.worth, "a", ear.committed).start()
        gate.set()
        with pytest.raises(StaleRoundError):
            await asyncio.wait_for(ear.over, 30)
        await newer.until_said(MOST_TOKENS)


async def test_a_late_commit_leaves_the_tokens_of_a_newer_start() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        it.backend.may_compute = gate = Gate()
        ear.start()
        await asyncio.to_thread(gate.reached.wait, 30)
        newer = Ear(it, ear.worth, "a", [*ear.committed, *said(ear.committed, 43)])
        ear.commit([3, 4, 5, 6])
        newer.start()
        gate.set()
        with pytest.raises(StaleRoundError):
            await asyncio.wait_for(ear.over, 30)
        await newer.until_said(MOST_TOKENS)


async def test_a_tail_after_kept_tokens_is_read_alone() -> None:
    async with guessing(prompt_of(1, 40)) as (it, ear):
        ear.start()
        await ear.until_said(MOST_TOKENS)
        await it.quiet()
        before = rows(it)
        newer = Ear(it, ear.worth, "a", [*ear.committed, 9, 9]).start(base=40)
        await newer.until_said(MOST_TOKENS)
        await it.quiet()
        assert rows(it) == before + 2 + MOST_TOKENS - 1


async def test_commits_with_a_gap_are_refused() -> None:
    text = CommittedText(10, [1, 2], 0.0)
    with pytest.raises(SequenceTooShortError, match="12"):
        text.add(13, [3])
    assert text.add(12, [3])  # nothing was guessed yet
    text.guess = (13, (4, 5, 6))
    assert not text.add(12, [3, 4])
    assert not text.add(10, [1])
    assert text.add(14, [5, 7])
    assert (text.length, text.tokens.tolist()) == (16, [1, 2, 3, 4, 5, 7])


async def test_a_text_longer_than_the_context_is_refused() -> None:
    async with guessing(prompt_of(1, 90), page_count=5) as (_, ear):
        ear.start()
        with pytest.raises(ContextExceededError):
            await asyncio.wait_for(ear.over, 30)


async def test_a_draft_that_disagrees_is_followed_by_its_own_tokens() -> None:
    """A draft of half the target's choices: each hint has what the draft would choose."""
    half = ArithmeticSettings(ends=0, agreement=0.5)
    prompt = prompt_of(1, 40)
    async with guessing(prompt, settings=half) as (it, ear):
        ear.start()
        for _ in range(60):
            await ear.until_heard()
            ear.commit(said(ear.committed, len(ear.committed) + 1))
        await it.quiet()
        # Much less is read than if every commit began from the prompt.
        assert rows(it) < 40 + 60 * 20
