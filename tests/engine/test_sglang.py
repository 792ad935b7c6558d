"""SGLang behind a verifier: requests and answers in the form that its documentation has, and the
answers that have another form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.host import HostLimits, JobHost
from slipstream.engine.run_job import RunEnd
from slipstream.sampling.choose import choose
from slipstream.sampling.partial.known import PartialRow, Wanted
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.softmax import log_softmax
from slipstream.stock.choosing import Chooser
from slipstream.stock.openai_http import EngineHttp, origin_of
from slipstream.stock.protocol import Ask, EngineLostError, EngineRefusedError, StockRow
from slipstream.stock.sglang import SGLang
from slipstream.stock.start import stock_worker
from slipstream.stock.token_probe import TokenProbe
from tests.fake_sglang import CONTEXT, FakeSGLang
from tests.fake_vllm import MODEL, VOCABULARY_SIZE, logprobs_after, text_after
from tests.stock_bench import GREEDY, SAMPLED, TOKENIZER, bench, prompt_of, settings


def engine_of(fake: FakeSGLang) -> SGLang:
    http = EngineHttp("SGLang", origin_of(fake.url), bearer=None, timeout_seconds=20)
    probe = TokenProbe("some text", fake.tokenizer.encode("some text", add_special_tokens=False).ids)
    return SGLang(http, model=MODEL, vocabulary_size=VOCABULARY_SIZE, probe=probe)


async def test_rows_of_a_hint_are_one_request_that_starts_one_earlier() -> None:
    with FakeSGLang().serving() as fake:
        engine = engine_of(fake)
        tokens, hint = prompt_of(1, 9), [5, 6, 7]
        rows = await engine.score(Ask(tokens, hint, Wanted(3, (1, 4000))))
        (request,) = fake.requests
        assert request["logprob_start_len"] == 8, "the first entry is None"
        assert len(rows) == 4
        for count, row in enumerate(rows):
            right = logprobs_after([*tokens, *hint[:count]])
            assert row.token == right.argmax()
            assert row.known.likeliest_count == 3
            for token in (1, 4000, *sorted(range(VOCABULARY_SIZE), key=lambda each: -right[each])[:3]):
                assert row.known.logprob(token) == right[token]
        await engine.close()


async def test_one_row_asks_for_no_entry_of_the_input() -> None:
    with FakeSGLang().serving() as fake:
        engine = engine_of(fake)
        (row,) = await engine.score(Ask([3], (), Wanted(2)))
        assert fake.requests[0]["logprob_start_len"] == -1
        assert row.token == logprobs_after([3]).argmax()
        await engine.close()


async def test_rows_of_a_text_list_each_token_and_the_likeliest() -> None:
    with FakeSGLang().serving() as fake:
        engine = engine_of(fake)
        tokens = prompt_of(2, 10)
        rows = await engine.score_tail(tokens, 9, 2)
        for place, row in enumerate(rows, 1):
            right = logprobs_after(tokens[:place])
            assert row.logprob(tokens[place]) == right[tokens[place]]
            assert row.bound == sorted(right.tolist())[-2]
        await engine.close()


@pytest.mark.parametrize("streams_increments", [False, True])
async def test_a_stream_repeats_its_rows_or_not(streams_increments: bool) -> None:
    fake = FakeSGLang()
    fake.streams_increments = streams_increments
    async with bench(fake) as it:
        ear = it.start("a", prompt_of(3), 112)
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == text_after(prompt_of(3), 72, GREEDY)
        lengths = [request["sampling_params"]["max_new_tokens"] for request in fake.requests]
        assert lengths == [64, 8], "a long stream is asked for in parts"


@pytest.mark.parametrize(
    ("change", "lacks", "context_length"),
    [
        (lambda fake: None, (), CONTEXT - 7),
        (lambda fake: setattr(fake, "has_old_names", False), (), CONTEXT - 7),
        (lambda fake: setattr(fake, "tells_limit", False), (), CONTEXT - 7),
        (lambda fake: setattr(fake, "takes_ids", False), ("token_ids_logprob",), CONTEXT - 7),
        (
            lambda fake: setattr(fake, "deterministic", False),
            ("--enable-deterministic-inference (equal bits in a batch)",),
            CONTEXT - 7,
        ),
    ],
    ids=["all", "newer names", "no limit", "no ids", "not deterministic"],
)
async def test_facts_are_asked_for_and_what_is_lacking_is_named(
    change: Callable[[FakeSGLang], None], lacks: tuple[str, ...], context_length: int
) -> None:
    fake = FakeSGLang()
    change(fake)
    with fake.serving():
        engine = engine_of(fake)
        facts = await engine.connect()
        await engine.close()
    assert (facts.engine, facts.model) == ("SGLang 0.5.13", MODEL)
    assert (facts.lacks, facts.context_length) == (lacks, context_length)
    assert bool(facts.most_ids) is fake.takes_ids


async def test_a_server_without_ids_gives_the_same_text() -> None:
    fake = FakeSGLang()
    fake.takes_ids = False
    async with bench(fake) as it:
        ear = it.start("a", prompt_of(4), 60, rule=SAMPLED)
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == text_after(prompt_of(4), 20, SAMPLED)


FILTERED = SamplingRule(temperature=1.3, top_k=50, top_p=0.9, min_p=0.01, seed=6, logit_bias=((9, 4.0), (77, -3.0)))


async def test_filters_and_biases_give_the_text_of_the_whole_rows() -> None:
    async with bench(FakeSGLang()) as it:
        ear = it.start("a", prompt_of(5), 60, rule=FILTERED)
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == text_after(prompt_of(5), 20, FILTERED)


META: dict[str, Any] = {
    "finish_reason": None,
    "completion_tokens": 1,
    "output_token_logprobs": [[-0.1, 5, None]],
    "output_top_logprobs": [[[-0.1, 5, None], [-3.0, 6, None]]],
    "input_token_logprobs": [[None, 3, None], [-1.0, 4, None]],
    "input_top_logprobs": [None, [[-0.5, 8, None], [-1.0, 4, None]]],
}


def altered(**changes: Any) -> dict[str, Any]:
    return {"text": "", "meta_info": {**META, **changes}}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        {"meta_info": {}},
        altered(input_top_logprobs=[None]),
        altered(input_top_logprobs=[None, None]),
        altered(input_token_logprobs=[[None, 3, None], [-1.0, 9, None]]),
        altered(output_top_logprobs=[[["x", 5, None]]]),
        altered(output_top_logprobs=[[[0.7, 5, None]]]),
        altered(output_top_logprobs=[[[-0.7, 5000, None]]]),
        altered(output_token_logprobs=[]),
    ],
    ids=["empty", "list", "no lists", "short", "none", "another token", "text", "above 0", "no such token", "no row"],
)
async def test_an_answer_of_another_form_is_named(answer: object) -> None:
    with FakeSGLang().serving() as fake:
        engine = engine_of(fake)
        fake.answer = altered()
        assert [row.token for row in await engine.score(Ask([3], [4], Wanted(2)))] == [8, 5], "the right form"
        fake.answer = answer
        with pytest.raises(EngineRefusedError, match="SGLang's answer cannot be read"):
            await engine.score(Ask([3], [4], Wanted(2)))
        await engine.close()


async def test_minus_infinity_is_null() -> None:
    with FakeSGLang().serving() as fake:
        engine = engine_of(fake)
        fake.answer = altered(output_top_logprobs=[[[-0.1, 5, None], [None, 6, None]]])
        row = (await engine.score(Ask([3], (), Wanted(2))))[0].known
        assert row.logprob(6) == row.bound == float("-inf")
        await engine.close()


@pytest.mark.parametrize("takes_ids", [True, False])
@pytest.mark.parametrize("rule", [{"temperature": 2.0}, {"temperature": 2.0, "top_p": 0.999}], ids=["plain", "top-p"])
async def test_a_flat_distribution_takes_few_questions(rule: dict[str, float], takes_ids: bool) -> None:
    """At a high temperature any token may win, and a top-p needs the mass above it."""
    fake = FakeSGLang()
    fake.takes_ids = takes_ids
    flat = log_softmax(np.random.default_rng(4).normal(scale=0.7, size=VOCABULARY_SIZE).astype(np.float32))
    fake.logprobs_after = lambda tokens: flat
    with fake.serving():
        engine = engine_of(fake)
        chooser = Chooser(engine, await engine.connect(), VOCABULARY_SIZE)
        for seed in range(12):
            row = Row(SamplingRule(seed=seed, **rule), 1)
            fake.requests.clear()
            (found,) = await engine.score(Ask([2], (), chooser.first_wanted([row], None)))
            choice = await chooser.choose(found, row, [2], None)
            assert choice.token == choose(flat[np.newaxis], [row])[0].token
            assert len(fake.requests) <= 5
        await engine.close()


async def test_equal_log_probabilities_are_decided_by_the_lower_id() -> None:
    """A server's list of likeliest tokens may end among equals, and begin with any of them."""
    with FakeSGLang().serving() as fake:
        engine = engine_of(fake)
        chooser = Chooser(engine, await engine.connect(), VOCABULARY_SIZE)
        top = [[-0.9, 9, None], [-0.9, 3, None], [-2.0, 8, None]]
        fake.answer = altered(output_top_logprobs=[top], output_token_ids_logprobs=[[]])
        tied = StockRow(9, PartialRow.of(VOCABULARY_SIZE, [(9, -0.9), (7, -0.9)]))
        choice = await chooser.choose(tied, Row(GREEDY, 1), [2], None)
        assert (choice.token, choice.margin) == (3, 0.0)
        await engine.close()


@pytest.mark.parametrize(("status", "error"), [(400, EngineRefusedError), (503, EngineLostError)])
async def test_an_aborted_request_says_why(status: int, error: type[Exception]) -> None:
    with FakeSGLang().serving() as fake:
        engine = engine_of(fake)
        fake.abort = {"type": "abort", "message": "the input is too long", "status_code": status}
        with pytest.raises(error, match="the input is too long"):
            await engine.score(Ask([3], (), Wanted(2)))
        await engine.close()


@pytest.mark.parametrize(
    "body",
    [b"data: {}\n\n", b'data: {"error": {"message": "out of memory"}}\n\n', b"data: [DONE]\n\n"],
    ids=["no rows", "an error", "nothing"],
)
async def test_a_stream_that_cannot_be_used_is_named(body: bytes) -> None:
    async with bench(FakeSGLang()) as it:
        it.fake.fault = body
        ear = it.start("a", prompt_of(8), 100)
        with pytest.raises(EngineRefusedError, match="SGLang"):
            await ear.end()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fake: fake.tokenizer.add_tokens(["model guess"]), "SGLang serves .* with another tokenizer"),
        (lambda fake: setattr(fake, "fault", (400, "no text today")), "no text today"),
        (lambda fake: setattr(fake, "answer", altered(input_top_logprobs=[])), "SGLang cannot be used"),
    ],
)
async def test_a_server_that_cannot_be_used_is_refused_in_one_line(change: Any, message: str) -> None:
    fake = FakeSGLang()
    change(fake)
    with fake.serving():
        stock = settings(fake.url, engine="sglang")
        host: JobHost[Any] = JobHost(stock_worker(stock, TOKENIZER, lambda _: None), HostLimits())
        with pytest.raises(UnsupportedModelError, match=message) as refused:
            await host.start()
        assert "\n" not in str(refused.value)
