"""A verifier's worker over servers that answer as vLLM and SGLang do.

Each text is that of the sampling rule, for all that servers, hints and the network do."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from slipstream.engine.errors import StaleRoundError, UnsupportedModelError
from slipstream.engine.host import HostLimits, JobHost
from slipstream.engine.job import Statement
from slipstream.engine.run_hints import HintTerms
from slipstream.engine.run_job import RunEnd
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.partial.refused import refused_fields
from slipstream.sampling.rule import Acceptance, SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_compiler import StructureCompiler
from slipstream.stock.protocol import EngineLostError, EngineRefusedError, SamplingUnsupportedError, StockFacts
from slipstream.stock.served import ModelFiles
from slipstream.stock.start import stock_worker
from tests.fake_sglang import FakeSGLang
from tests.fake_vllm import VOCABULARY_SIZE, FakeVllm, logprobs_after, text_after
from tests.stock_bench import GREEDY, SAMPLED, TOKENIZER, Ear, bench, prompt_of, settings, until
from verifier_service.verifier import VerifyJob

BOTH = pytest.mark.parametrize("engine", [FakeVllm, FakeSGLang], ids=["vllm", "sglang"])


def limited(most_logprobs: int, *, takes_ids: bool = True) -> FakeVllm:
    fake = FakeVllm()
    fake.most_logprobs, fake.takes_ids = most_logprobs, takes_ids
    return fake


@pytest.mark.parametrize(
    "fake",
    [limited(4096), limited(20), limited(4096, takes_ids=False), FakeSGLang()],
    ids=["all", "20", "no ids", "sglang"],
)
@pytest.mark.parametrize("rule", [GREEDY, SAMPLED, SamplingRule(temperature=1.5, seed=3)], ids=["0", "0.8", "1.5"])
async def test_a_run_chooses_what_the_whole_rows_give(fake: FakeVllm, rule: SamplingRule) -> None:
    async with bench(fake) as it:
        prompt = prompt_of(1)
        ear = it.start("a", prompt, 80, rule=rule)
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == text_after(prompt, 40, rule)


async def test_a_greedy_run_without_hints_is_one_request() -> None:
    async with bench() as it:
        ear = it.start("a", prompt_of(1), 80)
        await ear.end()
        assert [request["max_tokens"] for request in it.fake.requests] == [40]


@BOTH
@pytest.mark.parametrize("rule", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_right_wrong_and_late_hints_never_change_a_text(engine: type[FakeVllm], rule: SamplingRule) -> None:
    rng = random.Random(5)
    async with bench(engine()) as it:
        runs = {}
        for name in "abc":
            prompt = prompt_of(ord(name))
            runs[name] = (
                prompt,
                text_after(prompt, 60, rule),
                it.start(name, prompt, 100, rule=rule, hinting=HintTerms(fixed_count=8)),
            )
        while not all(ear.over.done() for _, _, ear in runs.values()):
            for name, (prompt, right, ear) in runs.items():
                start = max(0, len(ear.tokens) + rng.randint(-3, 3))
                tokens = right[start : start + rng.randint(1, 8)]
                if tokens and rng.random() < 0.5:
                    tokens[rng.randrange(len(tokens))] = rng.randrange(VOCABULARY_SIZE)
                if tokens:
                    it.hint(name, len(prompt) + start, tokens)
            await asyncio.sleep(0.002)
        for _, right, ear in runs.values():
            assert await ear.end() is RunEnd.UNTIL
            assert ear.tokens == right
            assert sum(step.token_count for step in ear.steps) == 60
        steps = [step for _, _, ear in runs.values() for step in ear.steps]
        assert any(step.accepted_count for step in steps)
        assert any(step.hint_count > step.accepted_count for step in steps)


@BOTH
async def test_a_fixed_length_is_verified_in_each_step(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        prompt = prompt_of(2)
        right = text_after(prompt, 40, GREEDY)
        ear = it.start("a", prompt, 80, 41, hinting=HintTerms(fixed_count=4, longest_hold=5.0))
        await ear.until_told(1)
        while not ear.over.done():
            at = len(ear.tokens)
            it.hint("a", 40 + at, right[at : at + 4])
            it.host.grant("a", 1, 40 + at + 5)
            await ear.until_told(min(40, at + 1))
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == right
        assert [step.accepted_count for step in ear.steps[1:-1]] == [4] * (len(ear.steps) - 2)


async def test_a_run_pauses_at_its_grant_and_asks_for_no_more() -> None:
    async with bench() as it:
        prompt = prompt_of(3)
        ear = it.start("a", prompt, 100, 50)
        await ear.until_told(10)
        await until(lambda: not it.host.load.running_count)
        assert len(ear.tokens) == 10
        assert it.fake.requests[-1]["max_tokens"] == 10
        it.host.grant("a", 1, 2**31 - 1)
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == text_after(prompt, 60, GREEDY)


@BOTH
async def test_a_stop_ends_a_run_within_a_stream_and_keeps_its_tokens(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        prompt = prompt_of(4)
        ear = it.start("a", prompt, 2000)
        await ear.until_told(5)
        it.host.stop_run("a", 1)
        assert await ear.end() is RunEnd.STOPPED
        text = [*prompt, *ear.tokens]
        later = it.start("a", text, len(text) + 10, base=len(text) - 1)
        assert await later.end() is RunEnd.UNTIL
        assert [*ear.tokens, *later.tokens] == text_after(prompt, len(ear.tokens) + 10, GREEDY)


@BOTH
async def test_a_newer_round_overtakes_a_run(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        prompt = prompt_of(5)
        old = it.start("a", prompt, 2000)
        await old.until_told(3)
        new = it.start("a", prompt, 50)
        with pytest.raises(StaleRoundError):
            await old.end()
        assert await new.end() is RunEnd.UNTIL
        assert new.tokens == text_after(prompt, 10, GREEDY)


@BOTH
async def test_a_run_fills_the_whole_context(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        length = it.host.served.context_length
        prompt = prompt_of(12, length - 8)
        right = text_after(prompt, 9, GREEDY)
        ear = it.start("a", prompt, length + 1, length - 3, hinting=HintTerms(fixed_count=4))
        await ear.until_told(5)
        it.hint("a", length - 3, right[5:])
        it.host.grant("a", 1, length + 1)
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == right


async def test_what_the_server_lacks_is_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    fake = limited(20, takes_ids=False)
    fake.caches = False
    async with bench(fake):
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(" (")[0] for line in said] == [
        "vLLM 0.32.0 lacks allowed_token_ids",
        "vLLM 0.32.0 lacks a prefix cache",
        "vLLM 0.32.0 lacks --max-logprobs -1",
    ]


async def test_a_run_ends_at_an_end_token() -> None:
    async with bench() as it:
        prompt = prompt_of(6)
        end = text_after(prompt, 8, GREEDY)[-1]
        rule = SamplingRule(end_token_ids=(end,))
        ear = it.start("a", prompt, 2000, rule=rule)
        assert await ear.end() is RunEnd.TOKEN
        assert ear.tokens == text_after(prompt, 100, rule)


@BOTH
@pytest.mark.parametrize("rule", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_a_server_that_comes_back_goes_on_with_the_same_text(engine: type[FakeVllm], rule: SamplingRule) -> None:
    async with bench(engine()) as it:
        prompt = prompt_of(7)
        right = text_after(prompt, 60, rule)
        it.fake.rows_until_lost = 20
        ear = it.start("a", prompt, 100, rule=rule)
        it.hint("a", 45, right[5:12])
        await until(lambda: not it.fake.is_serving)
        it.fake.begin()
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == right


@BOTH
async def test_a_server_that_stays_away_makes_its_runs_move(engine: type[FakeVllm]) -> None:
    async with bench(engine(), patience=0.1) as it:
        it.fake.rows_until_lost = 5
        ear = it.start("a", prompt_of(8), 100)
        with pytest.raises(EngineLostError, match="cannot be reached"):
            await ear.end()
        assert ear.tokens == text_after(prompt_of(8), 5, GREEDY)


@BOTH
async def test_a_server_that_came_back_as_another_one_is_not_used(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        it.fake.rows_until_lost = 5
        ear = it.start("a", prompt_of(8), 100)
        await until(lambda: not it.fake.is_serving)
        it.fake.version = "0.33.0"
        it.fake.begin()
        with pytest.raises(EngineRefusedError, match="start the verifier again"):
            await ear.end()


@BOTH
async def test_a_server_that_does_not_answer_counts_as_lost(engine: type[FakeVllm]) -> None:
    async with bench(engine(), patience=0, timeout=3) as it:
        it.fake.may_answer.clear()
        ear = it.start("a", prompt_of(8), 100)
        with pytest.raises(EngineLostError, match=r"has not answered for 3 s"):
            await ear.end()


@pytest.mark.parametrize(
    "body",
    [
        b"data: {}\n\n",
        b'data: {"choices": [{"index": 0, "logprobs": {"tokens": ["the"], "token_logprobs": [0], "top_logprobs": [{}]}}]}\n\n',
        b'data: {"choices": [{"index": 0, "logprobs": {"tokens": ["token_id:5"], "top_logprobs": [{"token_id:5": 3.5}]}}]}\n\n',
        b'data: {"choices": [{"index": 0, "logprobs": {"tokens": ["token_id:9999"], "top_logprobs": '
        b'[{"token_id:9999": -1.0}]}}]}\n\n',
        b'data: {"error": {"message": "out of memory"}}\n\n',
        b"data: [DONE]\n\n",
    ],
    ids=["no choices", "no ids", "no log-probability", "no such token", "an error", "nothing"],
)
async def test_an_answer_that_cannot_be_used_is_named(body: bytes) -> None:
    async with bench() as it:
        it.fake.fault = body
        ear = it.start("a", prompt_of(8), 100)
        with pytest.raises(EngineRefusedError, match="vLLM"):
            await ear.end()


@BOTH
async def test_a_refused_request_says_what_the_server_says(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        it.fake.fault = (400, "this model takes no more than 7 tokens")
        ear = it.start("a", prompt_of(8), 100)
        with pytest.raises(EngineRefusedError, match="no more than 7 tokens"):
            await ear.end()


async def test_too_few_log_probabilities_are_named_with_the_flag() -> None:
    async with bench(limited(2, takes_ids=False)) as it:
        ear = it.start("a", prompt_of(8), 100, rule=SAMPLED)
        with pytest.raises(EngineRefusedError, match="--max-logprobs -1"):
            await ear.end()


@BOTH
async def test_log_probabilities_of_choices_and_of_the_tail(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        prompt = prompt_of(9, 12)
        ear = it.start("a", prompt, 20, rule=SAMPLED, logprobs=LogprobRequest(3, prompt=True))
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == text_after(prompt, 8, SAMPLED)
        text = [*prompt, *ear.tokens]
        told = [*ear.tail_logprobs, *[choice.logprobs for choice in ear.choices]]
        assert [each.token for each in told] == text[1:]
        for place, each in enumerate(told, 1):
            row = logprobs_after(text[:place])
            assert each.logprob == row[text[place]]
            assert [value for _, value in each.top] == sorted(row.tolist())[:-4:-1]


async def test_a_structure_holds_and_hints_do_not_change_it() -> None:
    rule = SamplingRule(
        temperature=0.8,
        seed=2,
        end_token_ids=(2,),
        first_generated_position=40,
        structure=Structure(StructureKind.REGEX, r"[0-9]{3} [a-f]{4}\."),
    )
    async with bench(limited(20)) as it:
        it.host.served.matchers.compiler = StructureCompiler(TOKENIZER, VOCABULARY_SIZE, [2])
        plain = it.start("a", prompt_of(10), 100, rule=rule)
        assert await plain.end() is RunEnd.TOKEN
        hinted = it.start("b", prompt_of(10), 100, rule=rule)
        await asyncio.sleep(0)
        it.hint("b", 42, [*plain.tokens[2:5], 77])
        assert await hinted.end() is RunEnd.TOKEN
        assert hinted.tokens == plain.tokens
        text = it.fake.tokenizer.decode(plain.tokens)
        assert re.fullmatch(r"[0-9]{3} [a-f]{4}\.", text.removesuffix("<|im_end|>"))


@BOTH
async def test_a_proposal_is_verified_too(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        prompt = prompt_of(11)
        right = text_after(prompt, 4, GREEDY)
        answer: asyncio.Future[VerifyJob] = asyncio.get_running_loop().create_future()

        class Once(Ear):
            def done(self, job: Any) -> None:
                answer.set_result(job)

        it.host.open_handle("a", None)
        proposal = [*right[:3], 5]
        it.host.run_round(
            "a",
            1,
            GREEDY,
            lambda sequence: VerifyJob(sequence, Statement(0, tuple(prompt)), proposal, GREEDY),
            Once(),
            content=1,
        )
        job = await asyncio.wait_for(answer, 30)
        assert (job.accepted_count, job.next_token) == (3, right[3])


async def test_more_log_probabilities_than_the_server_lists_are_refused_by_name() -> None:
    async with bench(limited(5)) as it:
        ear = it.start("a", prompt_of(9), 100, logprobs=LogprobRequest(6))
        with pytest.raises(SamplingUnsupportedError, match="top_logprob_count must be at most 5"):
            await ear.end()


async def test_what_a_partial_row_cannot_give_is_refused_by_name() -> None:
    async with bench() as it:
        ratio = SamplingRule(temperature=1.0, acceptance=Acceptance.RATIO)
        for rule, name in ((SamplingRule(repetition_penalty=1.1), "repetition_penalty"), (ratio, "acceptance")):
            with pytest.raises(SamplingUnsupportedError, match=name):
                it.start("a", prompt_of(1), 100, rule=rule)


def test_a_models_own_parameters_that_cannot_be_followed_are_left_out_and_told(tmp_path: Path) -> None:
    for file in embedded_directory("target").glob("*.json"):
        shutil.copy(file, tmp_path)
    own = {"do_sample": True, "temperature": 0.7, "repetition_penalty": 1.05, "typical_p": 0.9}
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    model = ModelFiles(str(tmp_path)).model(StockFacts("vLLM 0.32.0", "served", 2048, 20))
    assert (model.sampling_defaults.temperature, model.sampling_defaults.repetition_penalty) == (0.7, 1.0)
    assert [caveat.split(" of ")[0] for caveat in model.caveats] == [
        "the model's own repetition_penalty",
        "the model's own typical_p",
    ]
    assert refused_fields(SamplingRule(temperature=0.7)) == []


async def test_bits_are_tried_at_start_and_told() -> None:
    async with bench() as it:
        (caveat,) = it.host.served.caveats
        assert "vLLM 0.32.0 does not promise" in caveat
        assert "were equal in a trial at start" in caveat


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fake: setattr(fake, "root", "another"), None),
        (lambda fake: setattr(fake, "most_logprobs", 0), "start it with --max-logprobs -1"),
        (lambda fake: fake.tokenizer.add_tokens(["model guess"]), "another tokenizer"),
        (lambda fake: setattr(fake, "fault", (400, "no text today")), "no text today"),
    ],
)
async def test_a_server_that_cannot_serve_the_model_is_refused_in_one_line(change: Any, message: str | None) -> None:
    fake = FakeVllm()
    change(fake)
    with fake.serving():
        host: JobHost[Any] = JobHost(stock_worker(settings(fake.url), TOKENIZER, lambda _: None), HostLimits())
        if message is None:  # a lone model may have any name
            await host.start()
            await host.stop()
            return
        with pytest.raises(UnsupportedModelError, match=message) as refused:
            await host.start()
        assert "\n" not in str(refused.value)


async def test_a_server_that_is_not_there_is_named_with_its_flag() -> None:
    host: JobHost[Any] = JobHost(stock_worker(settings("http://127.0.0.1:9"), TOKENIZER, lambda _: None), HostLimits())
    with pytest.raises(UnsupportedModelError, match=r"127\.0\.0\.1:9 cannot be reached.*--engine-address"):
        await host.start()


async def test_a_start_that_waits_for_a_server_can_be_ended() -> None:
    worker = stock_worker(settings("http://127.0.0.1:9", start=600), TOKENIZER, lambda _: None)
    host: JobHost[Any] = JobHost(worker, HostLimits())
    starting = asyncio.ensure_future(host.start())
    await asyncio.sleep(0.2)
    starting.cancel()
    await asyncio.wait([starting])
    async with asyncio.timeout(30):
        await asyncio.get_running_loop().shutdown_default_executor()  # the thread that waited is free


def test_an_address_that_is_none_is_named_with_its_flag() -> None:
    with pytest.raises(InvalidFieldsError, match="--engine-address must be an http"):
        stock_worker(settings("localhost:8000"), TOKENIZER, lambda _: None)
