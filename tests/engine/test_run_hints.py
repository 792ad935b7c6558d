"""Runs with hints over an engine host with a model whose answers can be worked out: no hint changes
a text, however wrong or late it is, and right ones save steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.engine import Engine
from slipstream.engine.hinting.hints import Hint, Source
from slipstream.engine.host import EngineHost, HostLimits
from slipstream.engine.job import Job, Statement
from slipstream.engine.run_hints import HintTerms, RunStep
from slipstream.engine.run_job import RunEnd, RunJob, RunLimits
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import Sequence as CachedSequence
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.engine.test_runs import GREEDY, POISON, Bench, Ear, bench, longest_absence, prompt_of, said

AS_PAYS = HintTerms()


def start(
    it: Bench,
    handle: str,
    prompt: Sequence[int],
    until: int,
    granted: int | None = None,
    *,
    terms: HintTerms = AS_PAYS,
    rule: SamplingRule = GREEDY,
    logprobs: LogprobRequest | None = None,
) -> Ear:
    ear = Ear(prompt)
    it.host.open_handle(handle, None)
    number = it.numbers[handle] = it.numbers.get(handle, 0) + 1
    limits = RunLimits(until, until if granted is None else granted)

    def make_job(sequence: CachedSequence) -> RunJob:
        return RunJob(sequence, Statement(0, tuple(prompt)), rule, limits, logprobs, terms)

    it.host.run_round(handle, number, rule, make_job, ear, content=object())
    return ear


def hint(
    it: Bench,
    handle: str,
    start: int,
    tokens: Sequence[int],
    odds: float = 0.9,
    maker: int = 1,
    next_due: float | None = None,
) -> None:
    survivals = tuple([odds**power for power in range(1, len(tokens) + 1)])
    made = Hint(start, tuple(tokens), survivals, Source.DRAFT, maker, start, next_due)
    it.host.hint(handle, it.numbers[handle], made)


def steps_of(ear: Ear) -> list[RunStep]:
    return [step for part in ear.parts for step in part.steps]


def check_steps(ear: Ear) -> None:
    """The steps of each part account for its tokens."""
    for part in ear.parts:
        assert sum(step.token_count for step in part.steps) == len(part.choices)
        assert sum(step.forward for step in part.steps) <= part.timing.forward + 1e-9
    for step in steps_of(ear):
        assert 0 <= step.accepted_count <= min(step.hint_count, step.token_count)
        assert step.token_count <= step.accepted_count + 1 or not step.hint_count
        assert (step.source is None) == (step.hint_count == 0)


async def test_right_hints_save_steps() -> None:
    async with bench(profiled=False) as it:
        prompt = prompt_of(1, 40)
        it.backend.may_compute.clear()
        ear = start(it, "a", prompt, 360)
        for at in range(40, 360, 64):
            hint(it, "a", at, said(prompt, min(at + 64, 360))[at - 40 :])
        it.backend.may_compute.set()
        assert await ear.end() is RunEnd.UNTIL
        check_steps(ear)
        assert len(it.backend.steps) < 20
        hinted = [step for step in steps_of(ear) if step.hint_count]
        assert all(step.accepted_count == step.hint_count for step in hinted)
        assert sum(step.token_count for step in hinted) > 300


async def test_a_hint_that_is_there_joins_the_last_step_of_the_prompt() -> None:
    async with bench(batch_limits=BatchLimits(prefill_chunk=16), profiled=False) as it:
        prompt = prompt_of(1, 40)
        it.backend.may_compute.clear()
        ear = start(it, "a", prompt, 52)
        hint(it, "a", 40, said(prompt, 60))
        it.backend.may_compute.set()
        assert await ear.end() is RunEnd.UNTIL
        check_steps(ear)
        assert [sum(count for _, count in step) for step in it.backend.steps] == [16, 16, 16, 3]
        assert [len(part.choices) for part in ear.parts] == [9, 3]


async def test_a_hint_gives_way_if_the_end_of_a_prompt_has_no_room_for_it() -> None:
    async with bench(batch_limits=BatchLimits(max_step_tokens=24), profiled=False) as it:
        prompts = {f"h{number}": prompt_of(number, 20) for number in range(5)}
        it.backend.may_compute.clear()
        ears = {handle: start(it, handle, prompt, 60) for handle, prompt in prompts.items()}
        for handle, prompt in prompts.items():
            hint(it, handle, 20, said(prompt, 60))
        it.backend.may_compute.set()
        for ear in ears.values():
            assert await ear.end() is RunEnd.UNTIL
            check_steps(ear)
        assert max(sum(count for _, count in step) for step in it.backend.steps) <= 24


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ends", [False, True])
async def test_random_hints_change_no_token(seed: int, ends: bool) -> None:
    """Hints that are right, wrong, late, early, past the end, repeated and contradictory, for runs
    that pause, stop, begin again and take pages from one another."""
    rng = random.Random(seed)
    rule = SamplingRule(end_token_ids=tuple(rng.sample(range(256), 3))) if ends else GREEDY
    limits = BatchLimits(max_step_tokens=rng.choice([12, 40, 512]))
    async with bench(rng.choice([60, 4000]), limits) as it:
        prompts = {f"h{index}": prompt_of(10 * seed + index, rng.randint(1, 60)) for index in range(6)}
        ears = {}
        for handle, prompt in prompts.items():
            terms = HintTerms(
                takes_ngrams=rng.random() < 0.3,
                fixed_count=rng.choice([0, 0, 3]),
                longest_hold=rng.choice([0.0, 0.002, 0.02]),
            )
            ears[handle] = start(it, handle, prompt, len(prompt) + 150, len(prompt) + 20, terms=terms, rule=rule)
        while not all(ear.over.done() for ear in ears.values()):
            for handle, prompt in prompts.items():
                told = len(ears[handle].tokens)
                at = max(0, told + rng.randint(-10, 12))
                right = said(prompt, len(prompt) + at + 40)[at:]
                for wrong in rng.sample(range(40), rng.choice([0, 1, 3, 40])):
                    right[wrong] = rng.randrange(POISON)
                for _ in range(rng.choice([1, 1, 2])):
                    length = rng.randint(1, 40)
                    hint(it, handle, len(prompt) + at, right[:length], rng.choice([0.0, 0.5, 1.0]), rng.randint(1, 3))
                it.grant(handle, len(prompt) + told + rng.randint(0, 40))
            await asyncio.sleep(0.001)
        for ear in ears.values():
            end = await ear.end()
            assert end is RunEnd.UNTIL or ends
            check_steps(ear)


@pytest.mark.parametrize("effect", ["poisoned", "raises_on_poison"])
async def test_a_hint_that_the_model_cannot_compute_costs_its_run_hints_and_no_text(effect: str) -> None:
    """Logits are no numbers after such a token, or the forward raises."""
    async with bench(profiled=False) as it:
        prompts = [prompt for n in range(20) if POISON not in said(prompt := prompt_of(n, 40), 100)][:3]
        setattr(it.backend, effect, True)
        it.backend.may_compute.clear()
        ears = [start(it, str(n), prompt, 100) for n, prompt in enumerate(prompts)]
        for n, prompt in enumerate(prompts):
            wrong = [POISON] if n == 1 else []
            hint(it, str(n), 40, [*said(prompt, 45), *wrong, *said(prompt, 90)[5:]], 0.99)
        it.backend.may_compute.set()
        assert [await ear.end() for ear in ears] == [RunEnd.UNTIL] * 3
        assert not any(step.accepted_count for step in steps_of(ears[1]))
        assert effect != "poisoned" or all(any(step.accepted_count for step in steps_of(ears[n])) for n in (0, 2))
        await it.all_closed()


async def test_a_hint_past_the_end_is_cut() -> None:
    async with bench() as it:
        prompt = prompt_of(1, 40)
        it.backend.may_compute.clear()
        ear = start(it, "a", prompt, 50)
        hint(it, "a", 40, said(prompt, 100))
        it.backend.may_compute.set()
        assert await ear.end() is RunEnd.UNTIL
        assert len(ear.tokens) == 10
        check_steps(ear)


async def test_no_token_is_told_after_an_end_token_in_a_hint() -> None:
    async with bench() as it:
        prompt = prompt_of(1, 40)
        text = said(prompt, 80)
        rule = SamplingRule(end_token_ids=(text[20],))
        first = text.index(text[20])
        it.backend.may_compute.clear()
        ear = start(it, "a", prompt, 400, rule=rule)
        hint(it, "a", 40, text)
        it.backend.may_compute.set()
        assert await ear.end() is RunEnd.TOKEN
        assert ear.tokens == text[: first + 1]
        check_steps(ear)


async def test_logprobs_come_with_their_tokens() -> None:
    async with bench() as it:
        prompt = prompt_of(1, 40)
        said_plainly = start(it, "a", prompt, 60, logprobs=LogprobRequest(2, False))
        await said_plainly.end()
        it.backend.may_compute.clear()
        ear = start(it, "b", prompt, 60, logprobs=LogprobRequest(2, False))
        hint(it, "b", 40, [*said(prompt, 48), 1])
        it.backend.may_compute.set()
        await ear.end()
        assert any(step.accepted_count for step in steps_of(ear))
        plain = [choice.logprobs for part in said_plainly.parts for choice in part.choices]
        assert [choice.logprobs for part in ear.parts for choice in part.choices] == plain


async def test_a_fixed_length_waits_for_its_hints_and_not_for_a_draft_that_is_gone() -> None:
    async with bench() as it:
        prompt = prompt_of(1, 40)
        text = said(prompt, 140)
        ear = start(it, "a", prompt, 140, terms=HintTerms(fixed_count=4, longest_hold=0.3))
        for at in range(1, 50, 5):
            await ear.until_told(at)
            hint(it, "a", 40 + at, text[at : at + 6], next_due=0.01)
        assert await ear.end() is RunEnd.UNTIL
        hinted = [step for step in steps_of(ear) if step.hint_count]
        assert [step.hint_count for step in hinted] == [*[4] * 10, 1]
        assert sum(step.held > 0.25 for step in steps_of(ear)) == 1


async def test_a_fixed_length_does_not_wait_for_a_maker_that_has_no_more() -> None:
    async with bench() as it:
        prompt = prompt_of(1, 40)
        text = said(prompt, 140)
        it.backend.may_compute.clear()
        ear = start(it, "a", prompt, 60, terms=HintTerms(fixed_count=4, longest_hold=1.0))
        hint(it, "a", 40, text[:19], 0.0)
        it.backend.may_compute.set()
        assert await ear.end() is RunEnd.UNTIL
        assert [step.hint_count for step in steps_of(ear) if step.hint_count] == [4, 4, 4, 4]  # of 20 tokens
        assert not any(step.held for step in steps_of(ear))


async def test_runs_with_hints_and_prompts_all_take_part_in_every_few_steps() -> None:
    """Hints give way where rows are short: 96 runs with eight each are 864 rows, of 512."""
    async with bench(page_count=9000, profiled=False) as it:
        it.backend.may_compute.clear()
        ears = {}
        for number in range(96):
            prompt = prompt_of(number, 3)
            ears[f"r{number}"] = start(it, f"r{number}", prompt, 150)
            for at in range(3, 150, 8):
                hint(it, f"r{number}", at, said(prompt, at + 8)[at - 3 :], 0.99)
        for number in range(4):
            ears[f"p{number}"] = start(it, f"p{number}", prompt_of(number, 2000), 2010)
        it.backend.may_compute.set()
        for ear in ears.values():
            assert await ear.end() is RunEnd.UNTIL
            check_steps(ear)
        assert max(sum(count for _, count in step) for step in it.backend.steps) <= 512
        assert max(len(step) for step in it.backend.steps) >= 96
        assert longest_absence(it.backend.steps[5:-5]) <= 4


class _Quiet:
    """Hears a run of a model whose text is not known beforehand."""

    def __init__(self) -> None:
        self.choices: list[Choice] = []
        self.steps: list[RunStep] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def parts_done(self, parts: list[Job]) -> None:
        for job in parts:
            assert isinstance(job, RunJob)
            while job.parts:
                part = job.parts.popleft()
                self.choices += part.choices
                self.steps += part.steps

    def done(self, job: RunJob) -> None:
        self.parts_done([job])
        self.over.set_result(None)

    def failed(self, error: Exception) -> None:
        self.over.set_exception(error)

    def repeated(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("family", ["compiled", "llama", "gpt2"])
@pytest.mark.parametrize(
    "logprobs", [None, LogprobRequest(3, False), LogprobRequest(3, True)], ids=["plain", "logprobs", "prompt"]
)
async def test_hints_change_no_bit_of_a_real_model(
    family: str, logprobs: LogprobRequest | None, tmp_path: Path
) -> None:
    """Tokens, margins and log-probabilities of runs side by side, by several rules."""
    engine = _exact_engine(family, tmp_path)
    host: EngineHost[RunJob] = EngineHost(lambda: engine, BatchLimits(prefill_chunk=8), HostLimits())
    await host.start()
    rules = [SamplingRule(), SamplingRule(temperature=0.8, seed=5), SamplingRule(temperature=1.2, seed=6, top_k=20)]
    rules.append(SamplingRule(temperature=0.7, seed=7, repetition_penalty=1.3))
    rng = random.Random(3)

    async def said_by(names: str, texts: Sequence[Sequence[int]]) -> list[_Quiet]:
        ears = []
        for index, rule in enumerate(rules):
            handle, ear = f"{names}{index}", _Quiet()
            host.open_handle(handle, None)
            prompt = tuple(range(5 + index, 30))

            def make_job(
                sequence: CachedSequence, prompt: tuple[int, ...] = prompt, rule: SamplingRule = rule
            ) -> RunJob:
                # A run with more than one token has a hint in its prompt's last step.
                limits = RunLimits(len(prompt) + 60, len(prompt) + (1 if len(prompt) % 2 else 60))
                terms = HintTerms(takes_ngrams=True, fixed_count=6)  # without a price, which is this machine's
                return RunJob(sequence, Statement(0, prompt), rule, limits, logprobs, terms)

            host.run_round(handle, 1, rule, make_job, ear, content=handle)
            if texts:
                text = list(texts[index])
                for at in range(0, 56, 7):  # a run keeps eight
                    tokens = text[at : at + rng.randint(2, 9)]
                    if rng.random() < 0.4:
                        tokens[rng.randrange(len(tokens))] = rng.randrange(100)
                    survivals = tuple([0.95**power for power in range(1, len(tokens) + 1)])
                    host.hint(handle, 1, Hint(len(prompt) + at, tuple(tokens), survivals, Source.DRAFT, 1, len(prompt)))
            host.grant(handle, 1, len(prompt) + 60)
            ears.append(ear)
        for ear in ears:
            await asyncio.wait_for(ear.over, 60)
        return ears

    try:
        plain = await said_by("plain", [])
        hinted = await said_by("hinted", [[choice.token for choice in ear.choices] for ear in plain])
    finally:
        await host.stop()
    for one, other in zip(plain, hinted, strict=True):
        assert other.choices == one.choices
        assert sum(step.accepted_count for step in other.steps) > 10


def _exact_engine(family: str, directory: Path) -> Engine:
    if family == "compiled":
        saved = tiny_models.save(tiny_models.build("llama", head_dim=32), directory)
        backend = load_compiled_checkpoint(str(saved), dtype="float32", page_size=16, single_rows=False, threads=1)
        return Engine(backend, kv_memory_mib=16)
    saved = tiny_models.save(tiny_models.build(family), directory)
    model = TransformersModel.load(str(saved), device="cpu", dtype="float32", single_rows=False)
    return Engine(PlannedBackend(model), kv_memory_mib=16)


async def test_hints_that_come_during_a_long_step_are_bounded() -> None:
    """The last ones count."""
    async with bench(profiled=False) as it:
        prompt = prompt_of(1, 40)
        text = said(prompt, 140)
        it.backend.may_compute.clear()
        ear = start(it, "a", prompt, 140)
        job = it.host._rounds["a"].job
        for _ in range(10_000):
            hint(it, "a", 41, [1] * 64)
        hint(it, "a", 40, text[:60])
        assert job.hints is not None and len(job.hints._offered) <= 8
        assert len(it.host._thread._inbox._entries) <= 2
        it.backend.may_compute.set()
        assert await ear.end() is RunEnd.UNTIL
        assert sum(step.accepted_count for step in steps_of(ear)) >= 30
