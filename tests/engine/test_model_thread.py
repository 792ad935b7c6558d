"""The model thread with a model whose answers can be worked out: no job can end it, and none harms
another."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from draft_service.proposer import ProposeJob
from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings, next_token
from slipstream.engine.engine import Append, Appended, Engine
from slipstream.engine.errors import ModelThreadFailedError, RoundConflictError, UnknownHandleError
from slipstream.engine.host import EngineHost, HostLimits
from slipstream.engine.job import Job, Statement
from slipstream.engine.model import Segment
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import SequenceCache
from slipstream.engine.step_note import StepNote
from slipstream.engine.stop_flag import StopFlag
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.errors import SlipstreamError
from slipstream.sampling.coupled import choose_coupled
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.asking import Heard, run_round
from verifier_service.verifier import VerifyJob

PAPER = ArithmeticSettings(ends=0)
GREEDY = SamplingRule()
EMPTY = SamplingRule(temperature=0.01, seed=1, allowed_token_ids=(5,), banned_token_ids=(5,))
POISON = 200
"""A token after which the poisoned model computes NaN."""


class PoisonedModel(ArithmeticBackend):
    """Says NaN at each row of a sequence that holds POISON in its memory."""

    def forward(self, segments: list[Segment]) -> Floats32:
        logits = super().forward(segments)
        row = 0
        for segment in segments:
            end = segment.start + len(segment.tokens)
            if POISON in self._slots[list(segment.pages)].reshape(-1)[:end]:
                logits[row : row + segment.wanted] = math.nan
            row += segment.wanted
        return logits


class LostModel(ArithmeticBackend):
    """Its device is lost once it has seen POISON."""

    is_lost = False

    def forward(self, segments: list[Segment]) -> Floats32:
        self.is_lost |= any(POISON in segment.tokens for segment in segments)
        self._check()
        return super().forward(segments)

    def erase_pages(self, pages: list[int]) -> None:
        self._check()
        super().erase_pages(pages)

    def _check(self) -> None:
        if self.is_lost:
            raise RuntimeError("CUDA error: device-side assert triggered")


@asynccontextmanager
async def hosting(load: Callable[[], Engine], limits: BatchLimits | None = None) -> AsyncIterator[EngineHost[Job]]:
    host: EngineHost[Job] = EngineHost(load, limits or BatchLimits(), HostLimits())
    await host.start()
    try:
        yield host
    finally:
        await host.stop()
    host.engine.pool.check()


def paper(
    backend: type[ArithmeticBackend] = ArithmeticBackend,
    *,
    single_rows: bool = False,
    settings: ArithmeticSettings = PAPER,
) -> Engine:
    return Engine(backend(settings, single_rows=single_rows), kv_memory_mib=0.1)


def said(prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(sum(tokens), len(tokens), PAPER))
    return tokens[len(prompt) :]


async def verify(
    host: EngineHost[Job], tail: Sequence[int], rule: SamplingRule = GREEDY, proposal: Sequence[int] = ()
) -> VerifyJob:
    """One round on a fresh handle, which is closed again."""
    handle = secrets.token_hex(8)
    host.open_handle(handle, None)
    try:
        job = await run_round(
            host, handle, 1, lambda sequence: VerifyJob(sequence, Statement(0, tail), proposal, rule), content=None
        )
    finally:
        host.close_handle(handle)
    assert isinstance(job, VerifyJob)
    return job


async def propose(
    host: EngineHost[Job],
    tail: Sequence[int],
    rule: SamplingRule = GREEDY,
    length: int = 4,
) -> ProposeJob:
    handle = secrets.token_hex(8)
    host.open_handle(handle, None)
    try:
        job = await run_round(
            host,
            handle,
            1,
            lambda sequence: ProposeJob(sequence, Statement(0, tail), length, rule),
            content=None,
        )
    finally:
        host.close_handle(handle)
    assert isinstance(job, ProposeJob)
    return job


async def settled_held_count(host: EngineHost[Job]) -> int:
    """Pages held, given the closed sequences some time to give theirs back."""
    for _ in range(500):
        if not host.load.held_page_count:
            break
        await asyncio.sleep(0.01)
    return host.load.held_page_count


def reason_of(result: object) -> str:
    assert isinstance(result, SlipstreamError), result
    return result.reason


class FailingJob(VerifyJob):
    """Raises where it is told to."""

    fails_in = ""

    def _fail_in(self, place: str) -> None:
        if place == self.fails_in:
            raise ZeroDivisionError(place)

    def begin(self, cache: SequenceCache, context_length: int, vocabulary_size: int) -> None:
        self._fail_in("begin")
        super().begin(cache, context_length, vocabulary_size)

    def append(self, count: int) -> Append:
        self._fail_in("append")
        return super().append(count)

    def record_step(self, answer: Appended) -> bool:
        self._fail_in("take")
        return super().record_step(answer)

    def advance(self, choices: list[Choice]) -> bool:
        self._fail_in("advance")
        return super().advance(choices)


@pytest.mark.parametrize("place", ["begin", "append", "take", "advance"])
async def test_an_exception_of_a_job_ends_that_job_alone(place: str) -> None:
    def failing(sequence: object) -> FailingJob:
        job = FailingJob(sequence, Statement(0, [9] * 40), [], GREEDY)
        job.fails_in = place
        return job

    prompts = [list(range(10, 30)), [50, 60, 70]]
    async with hosting(paper) as host:
        handle = secrets.token_hex(8)
        host.open_handle(handle, None)
        bad = run_round(host, handle, 1, failing, content=None)
        first, failed, second = await asyncio.gather(
            verify(host, prompts[0]), bad, verify(host, prompts[1]), return_exceptions=True
        )
        assert isinstance(failed, ZeroDivisionError) and str(failed) == place
        assert isinstance(first, VerifyJob) and isinstance(second, VerifyJob)
        assert [first.next_token, second.next_token] == [said(prompt, 1)[0] for prompt in prompts]
        job = await run_round(
            host, handle, 1, lambda s: VerifyJob(s, Statement(0, prompts[0]), [], GREEDY), content="asked again"
        )
        assert isinstance(job, VerifyJob) and job.next_token == said(prompts[0], 1)[0]
        host.close_handle(handle)
        assert await settled_held_count(host) == 0


@pytest.mark.parametrize("single_rows", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("temperature", [0.0, 0.01])
async def test_a_proposal_in_which_nothing_can_be_chosen_fails_alone(temperature: float, single_rows: bool) -> None:
    rule = SamplingRule(temperature=temperature, seed=1, allowed_token_ids=(5,), banned_token_ids=(5,))
    prompt = [40, 50, 60]
    async with hosting(lambda: paper(single_rows=single_rows)) as host:
        for _ in range(2):
            bad, good = await asyncio.gather(
                propose(host, [1, 5, 5], rule), propose(host, prompt), return_exceptions=True
            )
            assert reason_of(bad) == "NO_TOKEN_TO_CHOOSE"
            assert isinstance(good, ProposeJob)
            assert [choice.token for choice in good.drawn] == said(prompt, 4)
        assert await settled_held_count(host) == 0


async def test_a_draft_says_what_it_can_before_nothing_can_be_chosen() -> None:
    prompt = [40, 50, 60]
    first = said(prompt, 1)[0]
    rule = SamplingRule(end_token_ids=(first,), allowed_token_ids=(first,), first_end_position=3)
    async with hosting(paper) as host:
        job = await propose(host, prompt, rule)
        assert [choice.token for choice in job.drawn] == [first]


@pytest.mark.parametrize("proposal", [(), (5, 5, 5)])
async def test_a_verification_in_which_nothing_can_be_chosen_fails_alone(proposal: tuple[int, ...]) -> None:
    prompt = [40, 50, 60]
    async with hosting(paper) as host:
        bad, good = await asyncio.gather(
            verify(host, [1, 5, 5], EMPTY, proposal), verify(host, prompt), return_exceptions=True
        )
        assert reason_of(bad) == "NO_TOKEN_TO_CHOOSE"
        assert isinstance(good, VerifyJob) and good.next_token == said(prompt, 1)[0]


@pytest.mark.parametrize("single_rows", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("rule", [GREEDY, SamplingRule(temperature=1.0, banned_token_ids=(7,))], ids=["0", "1"])
async def test_logits_that_are_no_numbers_fail_their_job_alone_and_their_pages_are_never_shared(
    rule: SamplingRule, single_rows: bool
) -> None:
    poisoned, prompt = [*range(10, 50), POISON, *range(10, 50)], [*range(60, 110)]
    async with hosting(
        lambda: paper(PoisonedModel, single_rows=single_rows), BatchLimits(max_step_tokens=64, prefill_chunk=16)
    ) as host:
        for _ in range(2):
            bad, worse, good = await asyncio.gather(
                verify(host, poisoned, rule, (4, 5)),
                propose(host, poisoned, rule),
                verify(host, prompt),
                return_exceptions=True,
            )
            assert reason_of(bad) == reason_of(worse) == "LOGITS_NOT_FINITE"
            assert isinstance(good, VerifyJob) and good.next_token == said(prompt, 1)[0]
        model = host.engine.backend
        assert isinstance(model, PoisonedModel) and POISON not in model._slots
        healthy = await verify(host, [*range(10, 50), *range(70, 90)])
        assert healthy.prefilled_count == 60 - 32, "whole pages before the chunk that brought NaN are as good as any"
        assert await settled_held_count(host) == 0


async def test_a_draft_that_computes_nan_on_its_way_fails_alone() -> None:
    """In several steps at once: the second of them meets the poison in its own pages."""
    prompt = [POISON - 3 - 2, 1, 1]  # its own next token is the poison
    assert said(prompt, 1) == [POISON]
    for single_rows in (False, True):
        async with hosting(lambda: paper(PoisonedModel, single_rows=single_rows)) as host:  # noqa: B023
            result = await asyncio.gather(propose(host, prompt), return_exceptions=True)
            assert reason_of(result[0]) == "LOGITS_NOT_FINITE"
            model = host.engine.backend
            assert isinstance(model, PoisonedModel) and POISON not in model._slots
            assert await settled_held_count(host) == 0


async def test_nan_in_a_real_models_pages_reaches_no_other_sequence(tmp_path: Path) -> None:
    """Masked keys are multiplied too: NaN left in a page, or in the padding page, would spread to
    the sequence that has it next."""
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)

    def load() -> Engine:
        model = TransformersModel.load(str(directory), device="cpu", dtype="float32")
        with torch.no_grad():
            model._model.get_input_embeddings().weight[POISON] = torch.nan
        return Engine(PlannedBackend(model), kv_memory_mib=0.5)

    prompts = [[(7 * i + shift) % 190 for i in range(60)] for shift in range(3)]
    async with hosting(load) as host:
        alone = [await verify(host, prompt, proposal=(3, 4)) for prompt in prompts]
    async with hosting(load) as host:
        for _ in range(5):  # through all pages
            results = await asyncio.gather(
                *(verify(host, prompt, proposal=(3, 4)) for prompt in prompts),
                verify(host, [*prompts[0], POISON, 5]),
                return_exceptions=True,
            )
            assert reason_of(results[-1]) == "LOGITS_NOT_FINITE"
            for expected, got in zip(alone, results, strict=False):
                assert isinstance(got, VerifyJob)
                assert (got.next_token, got.margin) == (expected.next_token, expected.margin)


@asynccontextmanager
async def losing_its_device() -> AsyncIterator[EngineHost[Job]]:
    """A host that has lost its device by the end, which the process is told."""
    ended = asyncio.Event()
    host: EngineHost[Job] = EngineHost(lambda: paper(LostModel), BatchLimits(), HostLimits())
    await host.start()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    try:
        yield host
        with pytest.raises(ModelThreadFailedError):
            await host.stop()
        await asyncio.wait_for(ended.wait(), 60)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_a_lost_device_fails_everyone_at_once_and_is_told_at_the_end() -> None:
    async with losing_its_device() as host:
        results = await asyncio.gather(
            verify(host, [5, POISON]), verify(host, [5, 6]), propose(host, [7]), return_exceptions=True
        )
        assert "MODEL_THREAD_FAILED" in {result.reason for result in results if isinstance(result, SlipstreamError)}
        with pytest.raises(ModelThreadFailedError, match="device-side assert"):
            await verify(host, [5, 6])


async def test_a_device_that_is_lost_to_a_lone_job_fails_it_and_everyone_after_it() -> None:
    async with losing_its_device() as host:
        for tail in ([5, POISON], [5, 6]):
            with pytest.raises(ModelThreadFailedError, match="device-side assert"):
                await asyncio.wait_for(verify(host, tail), 60)


async def test_each_job_has_its_own_answer() -> None:
    """Lone ones and crowds in turns, handles closed in between."""
    draw = random.Random(0)

    async def some(host: EngineHost[Job]) -> None:
        for _ in range(60):
            prompt = [draw.randrange(5, 190) for _ in range(draw.randrange(1, 40))]
            if draw.random() < 0.3:
                asyncio.get_running_loop().call_soon(host.close_handle, "unknown")
            job = await verify(host, prompt)
            assert job.next_token == said(prompt, 1)[0]
            if draw.random() < 0.3:
                await asyncio.sleep(draw.random() / 500)

    async with hosting(paper) as host:
        for count in (1, 2, 5):
            await asyncio.wait_for(asyncio.gather(*(some(host) for _ in range(count))), 60)
        assert await settled_held_count(host) == 0


async def test_the_last_step_is_told_of_once_its_answer_is_there_though_no_other_follows() -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Queue[int]()

    def tell(note: StepNote) -> None:  # by whichever thread has computed
        loop.call_soon_threadsafe(told.put_nowait, note.token_count)

    host: EngineHost[Job] = EngineHost(paper, BatchLimits(), HostLimits(), tell)
    await host.start()
    try:
        for length in (3, 5):
            await verify(host, range(10, 10 + length))
            assert await asyncio.wait_for(told.get(), 60) == length
        assert told.empty()
    finally:
        await host.stop()


async def test_only_committed_tokens_are_ever_shared() -> None:
    """No other sequence may find the pages of guesses."""
    committed = list(range(10, 50))
    async with hosting(paper) as host:
        job = await propose(host, committed, length=50)
        guessed = [*committed, *(choice.token for choice in job.drawn)]
        later = await verify(host, guessed)
        assert len(guessed) - later.prefilled_count == 32, "whole pages of what was committed"
        assert await settled_held_count(host) == 0


async def test_a_closed_handle_stays_closed_also_if_it_was_closed_before_it_opened() -> None:
    async with hosting(paper) as host:
        host.open_handle("0123456789abcdef", None)
        host.close_handle("0123456789abcdef")
        host.close_handle("fedcba9876543210")
        for handle in ("0123456789abcdef", "fedcba9876543210"):
            with pytest.raises(UnknownHandleError, match="was closed"):
                host.open_handle(handle, None)
        for number in range(10_000):
            host.close_handle(f"other {number}")
        host.open_handle("0123456789abcdef", None)  # forgotten: the memory has a bound
        assert len(host._closed) == 10_000


async def test_a_repeated_round_with_other_content_is_refused_and_the_first_answer_kept() -> None:
    async with hosting(paper) as host:
        handle = secrets.token_hex(8)
        host.open_handle(handle, None)

        async def ask(number: int, tail: list[int]) -> Job:
            statement = Statement(0, tail)
            return await run_round(
                host, handle, number, lambda s: VerifyJob(s, statement, [], GREEDY), content=(statement, GREEDY)
            )

        first = await ask(1, [5, 6])
        with pytest.raises(RoundConflictError):
            await ask(1, [5, 7])
        assert await ask(1, [5, 6]) is first
        assert await ask(2, [5, 7]) is not first


class Fussy(Heard[Job]):
    """Raises at the first thing that it is told, and notes the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []

    def parts_done(self, parts: list[Job]) -> None:
        self.told.append(parts)
        raise ZeroDivisionError("of parts")

    def done(self, job: Job) -> None:
        self.told.append(job)
        raise ZeroDivisionError("of the answer")


async def test_every_caller_of_a_round_gets_its_answer_and_one_that_cannot_take_it_fails_alone() -> None:
    async with hosting(paper) as host:
        handle = secrets.token_hex(8)
        host.open_handle(handle, None)
        first, fussy, second, late = Heard[Job](), Fussy(), Heard[Job](), Heard[Job]()

        def ask(listener: Heard[Job]) -> None:
            host.run_round(
                handle, 1, GREEDY, lambda s: VerifyJob(s, Statement(0, [5, 6]), [], GREEDY), listener, content=1
            )

        for listener in (first, fussy, second):
            ask(listener)
        job = await first.answer
        assert await second.answer is job
        with pytest.raises(ZeroDivisionError, match="of the answer"):
            await fussy.answer
        ask(late)
        assert late.answer.done() and late.answer.result() is job
        ask(again := Fussy())
        assert again.told == [job] and isinstance(again.answer.exception(), ZeroDivisionError)


class Crowd(ArithmeticBackend):
    """Tells how many tokens of which sequences each step had, by their first tokens."""

    def __init__(self, settings: ArithmeticSettings, *, single_rows: bool = False) -> None:
        super().__init__(settings, single_rows=single_rows)
        self.steps: list[dict[int, int]] = []

    def forward(self, segments: list[Segment]) -> Floats32:
        logits = super().forward(segments)
        firsts = [int(self._slots[segment.pages[0], 0]) for segment in segments]
        self.steps.append(dict(zip(firsts, (len(segment.tokens) for segment in segments), strict=True)))
        return logits


class Held(Crowd):
    """Takes its first step once all that is to be beside it has been submitted."""

    def __init__(self, settings: ArithmeticSettings, *, single_rows: bool = False) -> None:
        super().__init__(settings, single_rows=single_rows)
        self.may_begin = threading.Event()

    def forward(self, segments: list[Segment]) -> Floats32:
        assert self.may_begin.wait(10)
        return super().forward(segments)


async def test_a_prompt_gets_on_in_every_step_that_rounds_would_fill() -> None:
    """Five drafts in steps of four tokens: a prompt that waited for them would wait for them
    all."""
    prompt = [90, *range(100, 112)]
    limits = BatchLimits(max_step_tokens=4, prefill_chunk=4)
    model = Held(PAPER)
    async with hosting(lambda: Engine(model, kv_memory_mib=1), limits) as host:
        drafting = asyncio.gather(*(propose(host, [first, 5], length=16) for first in range(10, 15)))
        await asyncio.sleep(0)  # they are submitted first
        verifying = asyncio.create_task(verify(host, prompt))
        await asyncio.sleep(0)
        model.may_begin.set()
        job, drafts = await verifying, await drafting
        assert job.next_token == said(prompt, 1)[0]
        for first, draft in zip(range(10, 15), drafts, strict=True):
            assert [choice.token for choice in draft.drawn] == said([first, 5], 16)
        first = next(index for index, step in enumerate(model.steps) if 90 in step)
        beside = model.steps[first : first + len(prompt)]
        assert [step.get(90) for step in beside] == [1] * len(prompt), "its quarter of each step"
        assert all(sum(step.values()) == 4 for step in beside), "rounds have the rest"


async def test_drafts_of_several_sequences_go_on_together_until_the_first_is_done_or_another_comes() -> None:
    """By rules of their own, and as each would alone."""
    rules = [GREEDY, SamplingRule(temperature=0.7, seed=3), SamplingRule(temperature=0.7, seed=4), GREEDY]
    lengths = [9, 4, 9, 9]
    alone = []
    async with hosting(lambda: Engine(Crowd(PAPER, single_rows=True), kv_memory_mib=1)) as host:
        for first, (rule, length) in enumerate(zip(rules, lengths, strict=True), start=10):
            alone.append((await propose(host, [first, 5], rule, length=length)).drawn)
    model = Held(PAPER, single_rows=True)
    async with hosting(lambda: Engine(model, kv_memory_mib=1)) as host:
        runs: list[tuple[int, int]] = []
        begun, own = asyncio.Event(), host.engine.run_multi_step
        loop = asyncio.get_running_loop()

        def watched(appends: Sequence[Append], count: int, stop_flag: StopFlag) -> list[list[Appended]]:
            runs.append((len(appends), count))
            loop.call_soon_threadsafe(begun.set)
            return own(appends, count, stop_flag)

        host.engine.run_multi_step = watched  # type: ignore[assignment, method-assign]
        waiting = asyncio.create_task(propose(host, [10, 5], rules[0], length=lengths[0]))
        await begun.wait()  # its first step, alone
        others = [
            asyncio.create_task(propose(host, [first, 5], rule, length=length))
            for first, rule, length in zip((11, 12, 13), rules[1:], lengths[1:], strict=True)
        ]
        await asyncio.sleep(0.01)
        model.may_begin.set()
        together = [job.drawn for job in (await waiting, *await asyncio.gather(*others))]
    assert together == alone
    assert runs[:3] == [(1, 9), (4, 4), (3, 4)], "interrupted; until the shortest is done; until the longest there is"


async def test_a_draft_that_cannot_choose_harms_none_that_takes_its_steps_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fussy(logits: Any, rules: Sequence[SamplingRule], positions: Sequence[int], *rest: Any) -> list[Choice]:
        if 13 in [rule.seed for rule in rules] and max(positions) > 4:
            raise ZeroDivisionError("13")
        return choose_coupled(logits, rules, positions, *rest)

    drawn, unlucky = (SamplingRule(temperature=0.7, seed=seed) for seed in (12, 13))
    async with hosting(lambda: paper(single_rows=True)) as host:
        alone = await propose(host, [10, 5], drawn, length=9)
    monkeypatch.setattr("slipstream.sampling.choose.choose_coupled", fussy)
    model = Held(PAPER, single_rows=True)
    async with hosting(lambda: Engine(model, kv_memory_mib=1)) as host:
        both = asyncio.gather(
            propose(host, [10, 5], drawn, length=9), propose(host, [11, 5], unlucky, length=9), return_exceptions=True
        )
        await asyncio.sleep(0.01)
        model.may_begin.set()
        healthy, failed = await both
        assert isinstance(healthy, ProposeJob) and healthy.drawn == alone.drawn
        assert isinstance(failed, ProposeJob) and len(failed.drawn) == 3, "what was drafted so far stands"
        assert await settled_held_count(host) == 0
