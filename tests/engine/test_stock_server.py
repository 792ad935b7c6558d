"""A stock engine's server that fails, and one that comes back as another one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from slipstream.engine.run_job import RunEnd
from slipstream.sampling.rule import SamplingRule
from slipstream.stock.protocol import EngineLostError, EngineRefusedError
from tests.fake_sglang import FakeSGLang
from tests.fake_vllm import FakeVllm, logprobs_after, text_after
from tests.stock_bench import GREEDY, SAMPLED, bench, prompt_of, until

BOTH = pytest.mark.parametrize("engine", [FakeVllm, FakeSGLang], ids=["vllm", "sglang"])
PROMPT = prompt_of(8)


def other_weights(tokens: Sequence[int]) -> NDArray[np.float32]:
    return logprobs_after([5, *tokens])


def nearly_the_same(tokens: Sequence[int]) -> NDArray[np.float32]:
    """The rows, as rounding may leave them."""
    row = logprobs_after(tokens)
    noise = np.random.default_rng(sum(tokens)).normal(scale=1e-3, size=len(row))
    return (row + noise).astype(np.float32)


@BOTH
async def test_no_later_run_is_on_a_server_that_came_back_as_another_one(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        it.fake.rows_until_lost = 5
        ear = it.start("a", PROMPT, 100)
        await until(lambda: not it.fake.is_serving)
        before, it.fake.version = it.fake.version, "0.33.0"
        it.fake.begin()
        with pytest.raises(EngineRefusedError, match="start the verifier again"):
            await ear.end()
        with pytest.raises(EngineRefusedError, match=r"0\.33\.0"):
            await it.start("b", PROMPT, 100).end()
        it.fake.version = before
        again = it.start("c", PROMPT, 60)
        assert await again.end() is RunEnd.UNTIL
        assert again.tokens == text_after(PROMPT, 20, GREEDY)


@BOTH
async def test_other_weights_under_the_same_name_are_refused_before_a_token(engine: type[FakeVllm]) -> None:
    async with bench(engine(), look=0) as it:
        it.fake.logprobs_after = other_weights
        for handle in "ab":
            ear = it.start(handle, PROMPT, 100)
            with pytest.raises(EngineRefusedError, match="with other weights: the log-probabilities of a text differ"):
                await ear.end()
            assert ear.tokens == []
        it.fake.logprobs_after = logprobs_after
        ear = it.start("c", PROMPT, 60)
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == text_after(PROMPT, 20, GREEDY)


@BOTH
async def test_other_weights_after_a_restart_end_the_run(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        it.fake.rows_until_lost = 5
        ear = it.start("a", PROMPT, 100)
        await until(lambda: not it.fake.is_serving)
        it.fake.logprobs_after = other_weights
        it.fake.begin()
        with pytest.raises(EngineRefusedError, match="with other weights"):
            await ear.end()
        assert ear.tokens == text_after(PROMPT, len(ear.tokens), GREEDY)


@BOTH
@pytest.mark.parametrize("is_seen", [True, False], ids=["while the verifier waits", "at its next request"])
async def test_a_server_that_is_started_again_at_once_between_two_runs_is_not_taken_for_the_same(
    engine: type[FakeVllm], is_seen: bool
) -> None:
    async with bench(engine()) as it:
        assert await it.start("a", PROMPT, 60).end() is RunEnd.UNTIL
        it.fake.end()
        it.fake.logprobs_after = other_weights
        it.fake.begin()
        if is_seen:
            engine_of_bench = it.host._worker._steps.engine  # type: ignore[attr-defined]
            await until(lambda: engine_of_bench.lost_count() > 0)
        ear = it.start("b", PROMPT, 100)
        with pytest.raises(EngineRefusedError, match="with other weights"):
            await ear.end()
        assert ear.tokens == []


async def test_rounding_is_no_other_model() -> None:
    async with bench(look=0) as it:
        it.fake.logprobs_after = nearly_the_same
        assert await it.start("a", PROMPT, 60).end() is RunEnd.UNTIL


async def test_runs_share_a_look_at_a_server_that_does_not_answer() -> None:
    async with bench(patience=0, timeout=2, look=0) as it:
        it.fake.may_answer.clear()
        ears = [it.start(f"{number}", PROMPT, 100) for number in range(30)]
        for ear in ears:
            with pytest.raises(EngineLostError, match="has not answered for 2 s"):
                await ear.end()
        it.fake.may_answer.set()


@pytest.mark.parametrize("rule", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "ending",
    [
        b'data: {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}}\n\n',
        b'data: {"error": {"message": "all slots are taken", "code": 429}}\n\n',
        b"",
    ],
    ids=["its engine dies", "it is busy", "it just ends"],
)
async def test_a_stream_that_its_server_ends_goes_on_with_the_same_text(ending: bytes, rule: SamplingRule) -> None:
    async with bench() as it:
        it.fake.stream_fault = ending
        ear = it.start("a", PROMPT, 80, rule=rule)
        assert await ear.end() is RunEnd.UNTIL
        assert ear.tokens == text_after(PROMPT, 40, rule)
        assert it.fake.stream_fault is None


@BOTH
async def test_a_stopped_run_drops_its_request(engine: type[FakeVllm]) -> None:
    async with bench(engine()) as it:
        ear = it.start("a", PROMPT, 2000)
        await ear.until_told(3)
        it.fake.may_answer.clear()
        open_count = it.fake.open_count
        it.host.stop_run("a", 1)
        assert await ear.end() is RunEnd.STOPPED
        it.fake.may_answer.set()
        await until(lambda: it.fake.open_count < open_count)


async def test_requests_are_used_one_after_the_other_on_kept_connections() -> None:
    """A connection that the server has closed meanwhile costs no answer."""
    async with bench() as it:
        for number in range(3):
            ear = it.start(f"{number}", PROMPT, 50)
            assert await ear.end() is RunEnd.UNTIL
            assert ear.tokens == text_after(PROMPT, 10, GREEDY)
            it.fake.drop_connections()
            await asyncio.sleep(0)
