"""OpenAI's unmodified package talks to the gateway, which is a real process in front of the real
services. The text is that of gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.logprobs import token_text
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.version import VERSION
from tests.either_client import until
from tests.gateway_process import GatewayProcess, stored_sessions

MODEL = "embedded-target"
QUESTION = "What does os.path.join do?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
SAMPLED = Settings(seed=7, temperature=1.5, max_token_count=40)
SAMPLED_IN_OPENAI: Any = {"seed": 7, "temperature": 1.5, "max_tokens": 40}

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    store = tmp_path_factory.mktemp("store") / "sessions.db"
    with LocalServices(PairSettings(store=str(store))) as local:
        yield local


def test_the_served_model_is_listed(api: openai.OpenAI) -> None:
    assert [model.id for model in api.models.list()] == [MODEL]
    assert api.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("other")


def test_a_chat_has_the_text_and_the_usage_that_grpc_has(api: openai.OpenAI, grpc_client: Client) -> None:
    expected = grpc_client.answer([("user", QUESTION)], SAMPLED).wait()
    answer = api.chat.completions.create(model=MODEL, messages=MESSAGES, **SAMPLED_IN_OPENAI)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.prompt_token_count
    assert answer.usage.completion_tokens == expected.generated_token_count
    fingerprint = grpc_client.server_info().target.weights_fingerprint
    assert answer.system_fingerprint is not None
    assert fingerprint.startswith(answer.system_fingerprint.partition("-")[0])


def test_a_streamed_chat_has_the_same_text_and_says_how_it_ended(api: openai.OpenAI, grpc_client: Client) -> None:
    expected = grpc_client.answer([("user", QUESTION)], SAMPLED).wait()
    chunks = list(
        api.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            **SAMPLED_IN_OPENAI,
        )
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == expected.text
    ended = {"END_TOKEN": "stop", "MAX_TOKENS": "length"}[expected.finish_reason]
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == [ended]
    assert choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == expected.generated_token_count
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_several_choices_are_those_of_grpc_streamed_or_not(api: openai.OpenAI, grpc_client: Client) -> None:
    reply = grpc_client.answer([("user", QUESTION)], SAMPLED, choice_count=3)
    reply.wait()
    expected = [result.text for result in reply.results]
    assert len(set(expected)) == 3
    create = api.chat.completions.create
    whole = create(model=MODEL, messages=MESSAGES, n=3, **SAMPLED_IN_OPENAI)
    assert [choice.message.content for choice in whole.choices] == expected
    streamed = ["", "", ""]
    for chunk in create(model=MODEL, messages=MESSAGES, n=3, stream=True, **SAMPLED_IN_OPENAI):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == expected


def test_text_parts_a_developer_message_and_a_prediction_are_understood(
    api: openai.OpenAI, grpc_client: Client
) -> None:
    expected = grpc_client.answer([("system", "Be brief."), ("user", QUESTION)], SAMPLED).wait()
    parts = [{"type": "text", "text": QUESTION[:10]}, {"type": "text", "text": QUESTION[10:]}]
    messages: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = api.chat.completions.create(
        model=MODEL, messages=messages, prediction={"type": "content", "content": expected.text}, **SAMPLED_IN_OPENAI
    )
    assert answer.choices[0].message.content == expected.text
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens


def test_speculation_of_a_request_changes_no_text(api: openai.OpenAI) -> None:
    texts = [
        api.chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_body={"speculation": speculation}, **SAMPLED_IN_OPENAI
        )
        .choices[0]
        .message.content
        for speculation in ("off", "on", 3)
    ]
    assert texts[0]
    assert len(set(texts)) == 1


def test_an_answer_follows_its_schema(api: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}, "kind": {"enum": ["file", "folder"]}},
        "required": ["size", "kind"],
        "additionalProperties": False,
    }
    answer = api.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": {"name": "entry", "schema": schema, "strict": True}},
    )
    content = json.loads(answer.choices[0].message.content or "")
    assert content.keys() == {"size", "kind"}
    assert content["kind"] in ("file", "folder")


def test_stop_texts_end_an_answer(api: openai.OpenAI) -> None:
    create = api.chat.completions.create
    text = create(model=MODEL, messages=MESSAGES, max_completion_tokens=30).choices[0].message.content or ""
    word = text.split()[2]
    stopped = create(model=MODEL, messages=MESSAGES, max_completion_tokens=30, stop=word).choices[0]
    assert stopped.message.content == text[: text.index(word)]
    assert stopped.finish_reason == "stop"


def test_a_completion_echoes_its_prompt_and_goes_on_as_over_grpc(api: openai.OpenAI, grpc_client: Client) -> None:
    prompts = ["def main(", "import "]
    expected = []
    for prompt in prompts:
        reply = grpc_client.generate(prompt, SAMPLED, choice_count=2)
        reply.wait()
        expected += [prompt + result.text for result in reply.results]
    create = api.completions.create
    whole = create(model=MODEL, prompt=prompts, n=2, echo=True, **SAMPLED_IN_OPENAI)
    assert [choice.text for choice in whole.choices] == expected
    streamed = [""] * 4
    for chunk in create(model=MODEL, prompt=prompts, n=2, echo=True, stream=True, **SAMPLED_IN_OPENAI):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == expected


def test_prompts_may_be_token_ids(api: openai.OpenAI, grpc_client: Client) -> None:
    expected = grpc_client.generate([70, 80, 90], SAMPLED).wait()
    one = api.completions.create(
        model=MODEL, prompt=[70, 80, 90], extra_body={"return_token_ids": True}, **SAMPLED_IN_OPENAI
    )
    several = api.completions.create(model=MODEL, prompt=[[70, 80, 90], [70]], **SAMPLED_IN_OPENAI)
    assert one.choices[0].text == several.choices[0].text == expected.text
    assert one.choices[0].model_extra == {"token_ids": expected.token_ids, "stop_reason": None}


def test_log_probabilities_of_a_chat_are_grpcs_with_their_bytes(api: openai.OpenAI, grpc_client: Client) -> None:
    settings = Settings(max_token_count=6, top_logprob_count=2, token_bytes=True)
    expected = grpc_client.answer([("user", "Grüß Gott 🐍")], settings).wait()
    messages: Any = [{"role": "user", "content": "Grüß Gott 🐍"}]
    create = api.chat.completions.create
    whole = create(model=MODEL, messages=messages, max_tokens=6, logprobs=True, top_logprobs=2).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    streamed = []
    for chunk in create(model=MODEL, messages=messages, max_tokens=6, logprobs=True, top_logprobs=2, stream=True):
        for choice in chunk.choices:
            streamed += (choice.logprobs.content or []) if choice.logprobs else []
    assert streamed == whole.content
    assert [(bytes(token.bytes or []), token.logprob) for token in whole.content] == [
        (token.token_bytes, token.logprob) for token in expected.logprobs
    ]
    assert [[(bytes(top.bytes or []), top.logprob) for top in token.top_logprobs] for token in whole.content] == [
        [(spelt, logprob) for (_, logprob), spelt in zip(token.top, token.top_bytes, strict=True)]
        for token in expected.logprobs
    ]


@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
def test_log_probabilities_of_an_echoed_prompt_are_grpcs(api: openai.OpenAI, grpc_client: Client, as_ids: bool) -> None:
    text = "import os.path"
    ids = list(grpc_client.tokenize(text).token_ids)
    asked = Settings(max_token_count=3, top_logprob_count=1, prompt_logprobs=True)
    expected = grpc_client.generate(text, asked).wait()
    fields: Any = {"prompt": ids if as_ids else text, "max_tokens": 3, "logprobs": 1, "echo": True}
    whole = api.completions.create(model=MODEL, **fields).choices[0]
    assert whole.text == text + expected.text
    assert whole.logprobs is not None
    tokens = [*expected.prompt_logprobs, *expected.logprobs]
    assert whole.logprobs.token_logprobs == [None, *(token.logprob for token in tokens)]
    assert "".join(whole.logprobs.tokens or []).startswith(text)
    assert whole.logprobs.text_offset is not None
    assert whole.logprobs.text_offset[len(ids)] == len(text)
    likeliest = [max(top.values()) for top in (whole.logprobs.top_logprobs or [])[1:]]
    assert likeliest == [token.top[0][1] for token in tokens]
    parts = [chunk.choices[0] for chunk in api.completions.create(model=MODEL, stream=True, **fields)]
    assert "".join(part.text for part in parts) == whole.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [entry for part in parts if part.logprobs for entry in getattr(part.logprobs, name)]
        assert joined == getattr(whole.logprobs, name)


def test_a_token_that_is_a_part_of_a_character_is_written_as_its_bytes() -> None:
    assert token_text("é".encode()) == "é"
    assert token_text(b"\xe2\x80") == "bytes:\\xe2\\x80"


def test_tokenize_and_detokenize_are_grpcs(gateway: GatewayProcess, grpc_client: Client) -> None:
    plain = gateway.send("/tokenize", {"prompt": "import os", "return_token_strs": True}).body
    expected = grpc_client.tokenize("import os", token_strings=True)
    assert (plain["tokens"], plain["count"]) == (list(expected.token_ids), len(expected.token_ids))
    assert plain["token_strs"] == list(expected.token_strings)
    rendered = gateway.send("/tokenize", {"messages": MESSAGES}).body
    assert rendered["tokens"] == list(grpc_client.tokenize([("user", QUESTION)]).token_ids)
    assert gateway.send("/detokenize", {"tokens": plain["tokens"]}).body["prompt"].endswith("import os")
    wrong = gateway.send("/detokenize", {"tokens": [10**6]})
    assert (wrong.status, wrong.error["param"]) == (400, "tokens[0]")
    assert gateway.send("/tokenize", {}).error["param"] == "prompt"


def test_nothing_stays_of_answers_that_were_given(
    services: LocalServices, api: openai.OpenAI, grpc_client: Client
) -> None:
    grpc_client.answer([("user", QUESTION)], SAMPLED).wait()
    before = stored_sessions(services.settings.store)
    assert before > 0  # or a count of nothing would prove nothing
    api.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, max_tokens=5)
    for _ in api.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, stream=True):
        pass
    until(lambda: stored_sessions(services.settings.store) == before)


def test_health_version_and_the_openapi_document(gateway: GatewayProcess) -> None:
    assert gateway.send("/health").status == 200
    assert gateway.send("/version").body == {"version": VERSION}
    responses = gateway.send("/openapi.json").body["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert responses.keys() == {"200", "4XX", "5XX"}
    assert responses["200"]["content"].keys() == {"application/json", "text/event-stream"}


def test_a_token_that_is_malformed_is_refused(gateway: GatewayProcess) -> None:
    answer = gateway.send("/v1/models", headers={"authorization": "Basic abc"})
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


def test_requests_and_tokens_are_counted_for_prometheus(gateway: GatewayProcess, api: openai.OpenAI) -> None:
    def counted() -> dict[str, dict[tuple[str, ...], float]]:
        families = text_string_to_metric_families(gateway.send("/metrics").body)
        return {
            family.name.removeprefix("slipstream_gateway_"): {
                (sample.name.rpartition("_")[2], *sample.labels.values()): sample.value for sample in family.samples
            }
            for family in families
        }

    before = counted()
    answer = api.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, n=2)
    gateway.send("/v1/chat/completions", {"model": "other", "messages": MESSAGES})
    gateway.send("/v1/nothing-for-a-label")
    assert answer.usage is not None
    usage = answer.usage
    until(lambda: tokens(counted()) - tokens(before) == usage.completion_tokens)
    after = counted()
    assert after["prompt_tokens"]["total",] - before["prompt_tokens"]["total",] == usage.prompt_tokens
    path = "/v1/chat/completions"
    for status in ("200", "404"):
        label = ("total", path, status)
        assert after["requests"][label] - before["requests"].get(label, 0) == 1
    assert after["requests"]["total", "other", "404"] >= 1
    assert after["num_requests_running"]["running",] == 1
    for name, more in (("time_to_first_token_seconds", 1), ("e2e_request_latency_seconds", 2)):
        assert after[name]["count", path] - before[name].get(("count", path), 0) == more
    assert "nothing-for-a-label" not in gateway.send("/metrics").body


def tokens(counted: dict[str, dict[tuple[str, ...], float]]) -> float:
    return counted["generation_tokens"]["total",]
