"""vLLM's answers in odd forms, and the start over servers that cannot be used."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import numpy as np
import pytest
import trustme

from slipstream.engine.errors import UnsupportedModelError
from slipstream.errors import InvalidFieldsError
from slipstream.sampling.partial.known import PartialRow, Wanted
from slipstream.sampling.row import Row
from slipstream.stock.choosing import Chooser
from slipstream.stock.openai_http import EngineHttp, origin_of
from slipstream.stock.protocol import Ask, EngineLostError, EngineRefusedError, StockRow
from slipstream.stock.token_probe import TokenProbe
from slipstream.stock.vllm import Vllm
from tests.fake_vllm import MODEL, VOCABULARY_SIZE, FakeVllm, logprobs_after
from tests.stock_bench import GREEDY, prompt_of


def engine_of(fake: FakeVllm, served_as: str = "") -> Vllm:
    http = EngineHttp("vLLM", origin_of(fake.url), bearer=None, timeout_seconds=20)
    probe = TokenProbe("some text", fake.tokenizer.encode("some text", add_special_tokens=False).ids)
    return Vllm(http, model=MODEL, served_as=served_as, vocabulary_size=VOCABULARY_SIZE, probe=probe)


def choice(index: Any, token: Any, logprob: Any) -> dict[str, Any]:
    name = f"token_id:{token}"
    return {
        "index": index,
        "logprobs": {"tokens": [name], "token_logprobs": [logprob], "top_logprobs": [{name: logprob}]},
    }


def answer(*choices: Any) -> bytes:
    return json.dumps({"choices": list(choices)}).encode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (answer(choice(0, 5, -0.1)), "has answered 1 of 2 prompts"),
        (answer(choice(0, 5, -0.1), choice(0, 6, -0.1)), "has answered 1 of 2 prompts"),
        (answer(choice(0, 5, -0.1), choice(2, 6, -0.1)), "has answered 2 of 2 prompts"),
        (answer(choice(0, 5, -0.1), choice(None, 6, -0.1)), "has answered 2 of 2 prompts"),
        (answer(choice(0, 5, -0.1), choice(1, 6, None)), "cannot be read"),
        (answer(choice(0, 5, -0.1), choice(1, 6, float("nan"))), "must be numbers of at most 0"),
        (answer(choice(0, 5, -0.1), choice(1, 6, float("inf"))), "must be numbers of at most 0"),
        (answer(choice(0, 5, -0.1), choice(1, -6, -0.1)), "token ids must be from 0"),
        (answer(choice(0, 5, -0.1), choice(1, 4096, -0.1)), "token ids must be from 0 to 4095"),
        (answer(choice(0, 5, -0.1), choice(1, 10**30, -0.1)), "cannot be read"),
        (answer(choice(0, 5, -0.1), None), "cannot be read"),
        (answer(choice(0, 5, -0.1), {"index": 1, "logprobs": None}), "cannot be read"),
        (b'{"choices": null}', "cannot be read"),
        (b"[1, 2]", "cannot be read: /v1/completions has to give an object"),
        (b"null", "has to give an object"),
        (b"<html>Sign in</html>", "has given an answer that is no JSON"),
        (b'{"choices": [', "has given an answer that is no JSON"),
        (b"\x1f\x8b\x08\x00", "has given an answer that is no JSON"),
    ],
)
async def test_an_answer_that_is_none_is_refused_in_one_line(body: bytes, message: str) -> None:
    with FakeVllm().serving() as fake:
        engine = engine_of(fake)
        fake.fault = body
        with pytest.raises(EngineRefusedError, match=message) as refused:
            await engine.score(Ask([1, 2], [3], Wanted(1)))
        assert "\n" not in str(refused.value)
        await engine.close()


async def test_answers_in_another_order_are_put_in_order() -> None:
    with FakeVllm().serving() as fake:
        engine = engine_of(fake)
        fake.fault = answer(choice(1, 6, -0.1), choice(0, 5, -0.2))
        assert [row.token for row in await engine.score(Ask([1, 2], [3], Wanted(1)))] == [5, 6]
        await engine.close()


@pytest.mark.parametrize("count", [1, 2, 20])
async def test_a_row_whose_likeliest_tokens_another_client_took_is_asked_for_again(count: int) -> None:
    with FakeVllm().serving() as fake:
        engine = engine_of(fake)
        await engine.connect()
        fake.mixed_rows = 1
        with pytest.raises(EngineLostError, match=f"has not listed the {count} likeliest tokens"):
            await engine.score(Ask([1, 2], [], Wanted(count)))
        (row,) = await engine.score(Ask([1, 2], [], Wanted(count)))
        assert row.known.likeliest_count == count
        fake.mixed_rows = 1
        with pytest.raises(EngineLostError, match="logprob_token_ids"):
            _ = [row async for row in engine.continue_greedily([1, 2], 3, count)]
        await engine.close()


async def test_of_the_ids_asked_for_the_likeliest_is_told_and_caps_the_others() -> None:
    with FakeVllm().serving() as fake:
        engine = engine_of(fake)
        facts = await engine.connect()
        assert facts.most_ids and facts.tells_best_id
        whole = logprobs_after([1, 2])
        ids = np.argsort(-whole)[[30, 40, 50]].tolist()
        (row,) = await engine.score(Ask([1, 2], [], Wanted(2, tuple(sorted(ids)))))
        assert row.token == whole.argmax()
        assert [row.known.knows(token) for token in ids] == [True, False, False]
        assert row.known.likeliest_count == 2 and row.known.bound == np.sort(whole)[-2]
        assert (row.known.most()[ids] == whole[ids[0]]).all()
        assert (row.known.least() <= whole).all() and (whole <= row.known.most()).all()
        await engine.close()


@pytest.mark.parametrize("said", ["no\nsecond \ud800 line", "x" * 10_000])
async def test_what_a_server_says_is_cut_to_one_line_that_can_be_told(said: str) -> None:
    with FakeVllm().serving() as fake:
        engine = engine_of(fake)
        fake.fault = (400, said)
        with pytest.raises(EngineRefusedError) as refused:
            await engine.score(Ask([1, 2], [3], Wanted(2)))
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
        str(refused.value).encode()
        await engine.close()


@pytest.mark.parametrize("token", [7, 4096, -1])
async def test_a_greedy_token_that_is_not_the_likeliest_is_not_believed(token: int) -> None:
    with FakeVllm().serving() as fake:
        engine = engine_of(fake)
        chooser = Chooser(engine, await engine.connect(), VOCABULARY_SIZE)
        prompt = prompt_of(1)
        row = logprobs_after(prompt)
        best = [(int(at), float(row[at])) for at in np.argsort(-row)[:2]]
        found = StockRow(token, PartialRow.of(VOCABULARY_SIZE, best))
        chosen = await chooser.choose(found, Row(GREEDY, len(prompt), prompt), prompt, None)
        assert chosen.token == best[0][0]
        await engine.close()


@pytest.mark.parametrize("shift", [-5.0, -0.1])
async def test_logits_in_place_of_log_probabilities_are_refused_with_the_flag(shift: float) -> None:
    with FakeVllm().serving() as fake:
        engine = engine_of(fake)
        fake.logprobs_after = lambda tokens: logprobs_after(tokens) + np.float32(shift)
        with pytest.raises(UnsupportedModelError, match="--logprobs-mode raw_logprobs"):
            await engine.connect()
        await engine.close()


@pytest.mark.parametrize("data", [None, {}, [None], [{"id": "a", "root": "a"}], [{"root": MODEL}]])
async def test_a_list_of_models_that_is_none_is_refused(data: Any) -> None:
    with FakeVllm().serving() as fake:
        engine = engine_of(fake)
        fake.models = data if data is not None else [{"id": None}]
        with pytest.raises((EngineRefusedError, UnsupportedModelError)) as refused:
            await engine.connect()
        assert "vLLM" in str(refused.value)
        await engine.close()


async def test_a_certificate_that_is_not_trusted_is_named_with_the_reason() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    async with await asyncio.start_server(lambda _, writer: writer.close(), "localhost", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        http = EngineHttp("vLLM", origin_of(f"https://localhost:{port}"), bearer=None, timeout_seconds=20)
        with pytest.raises(EngineLostError, match=r"TLS failed: .*issuer certificate"):
            await http.json("/version")
        await http.close()


@pytest.mark.parametrize(
    "address",
    [
        "http://user:hunter2@host:8000",
        "http://hunter2@host:8000",
        "https://host/path?api-key=hunter2",
        "https://host/path#hunter2",
        "http://:8000",
        "http://host:99999",
        f"http://{'a' * 70}.example:8000",
        "http://a..b:8000",
    ],
)
def test_an_address_with_more_than_a_place_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(InvalidFieldsError, match="--engine-address") as refused:
        origin_of(address)
    assert "hunter2" not in str(refused.value)
