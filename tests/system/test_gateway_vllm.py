"""What the gateway has of vLLM's: statistics of speculation as AIPerf reads them, log-probabilities
of prompts, stop reasons, and older names of structures."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.bodies import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    DetokenizeBody,
    HealthBody,
    ModelCard,
    ModelList,
    TokenizeBody,
    VersionBody,
)
from gateway.errors import ErrorBody
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from tests.either_client import until
from tests.gateway_process import GatewayProcess

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "embedded-target"
QUESTION = "What does os.path.join do?"
CHAT_BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 40}
COMPLETION_BODY: dict[str, Any] = {"model": MODEL, "prompt": "import os.path\n", "max_tokens": 40}
BODIES = {CHAT: CHAT_BODY, COMPLETIONS: COMPLETION_BODY}

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services() -> Iterator[LocalServices]:
    with LocalServices(PairSettings()) as local:
        yield local


def sent(gateway: GatewayProcess, path: str, **fields: Any) -> dict[str, Any]:
    answer = gateway.send(path, {**BODIES[path], **fields})
    assert answer.status == 200, answer.body
    if fields.get("stream"):
        events = re.findall(r"^data: (\{.*\})$", answer.body, re.MULTILINE)
        return {"chunks": [json.loads(event) for event in events]}
    assert isinstance(answer.body, dict)
    return answer.body


def check_as_aiperf_does(told: dict[str, Any]) -> None:
    """AIPerf drops statistics for which one of these does not hold."""
    histogram = told["acceptance_histogram"]
    assert len(histogram) == told["num_spec_tokens"] + 1
    assert sum(histogram) == told["num_spec_steps"] > 0
    assert sum(length * count for length, count in enumerate(histogram)) == told["num_accepted_draft_tokens"]
    assert told["num_accepted_draft_tokens"] <= told["num_draft_tokens"]
    assert told["draft_acceptance_rate"] == told["num_accepted_draft_tokens"] / told["num_draft_tokens"]
    assert 1 <= told["mean_acceptance_length"] <= told["num_spec_tokens"] + 1


@pytest.mark.parametrize("path", BODIES)
def test_statistics_of_speculation_come_with_an_answer_or_its_last_chunk(gateway: GatewayProcess, path: str) -> None:
    fields: Any = {"speculation": 12, "temperature": 2, "seed": 1}  # few proposals are accepted, and none whole
    check_as_aiperf_does(sent(gateway, path, **fields)["metrics"]["speculative_decoding"])
    streamed = sent(gateway, path, **fields, stream=True, stream_options={"include_usage": True})
    *others, last = streamed["chunks"]
    check_as_aiperf_does(last["metrics"]["speculative_decoding"])
    assert not any("metrics" in chunk for chunk in others)


@pytest.mark.parametrize("path", BODIES)
def test_each_chunk_has_the_usage_of_its_answer_so_far(gateway: GatewayProcess, path: str) -> None:
    fields: Any = {"n": 2, "seed": 1, "return_token_ids": True, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = sent(gateway, path, **fields, stream_options=options)["chunks"]
    told = [0, 0]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        told[choice["index"]] += len(choice["token_ids"])
        prompt = last["usage"]["prompt_tokens"]
        generated = told[choice["index"]]
        usage = {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
        assert chunk["usage"] == usage
    assert sum(told) == last["usage"]["completion_tokens"] > 0
    without = sent(gateway, path, **fields, stream_options={**options, "include_usage": False})["chunks"]
    assert not any("usage" in chunk for chunk in without)


@pytest.mark.parametrize("fields", [{"speculation": "off"}, {"n": 2, "speculation": 4}], ids=str)
def test_statistics_are_left_out_without_speculation_and_for_several_answers(
    gateway: GatewayProcess, fields: dict[str, Any]
) -> None:
    assert "metrics" not in sent(gateway, CHAT, **fields)


def test_log_probabilities_of_a_prompt_are_grpcs(gateway: GatewayProcess, grpc_client: Client) -> None:
    asked = Settings(max_token_count=2, top_logprob_count=3, prompt_logprobs=True)
    expected = grpc_client.generate(COMPLETION_BODY["prompt"], asked).wait()
    fields = {"max_tokens": 2, "prompt_logprobs": 3, "logprobs": 1}
    (choice,) = sent(gateway, COMPLETIONS, **fields)["choices"]
    first, *told = choice["prompt_logprobs"]
    assert first is None
    assert [
        entry[str(token.token_id)]["logprob"] for entry, token in zip(told, expected.prompt_logprobs, strict=True)
    ] == [token.logprob for token in expected.prompt_logprobs]
    for entry, token in zip(told, expected.prompt_logprobs, strict=True):
        ranked = {found["rank"]: int(token_id) for token_id, found in entry.items() if found["rank"]}
        assert ranked == {rank: token_id for rank, (token_id, _) in enumerate(token.top, 1)}
    assert all(len(top) <= 2 for top in choice["logprobs"]["top_logprobs"])  # the likeliest one, and the token
    assert len(sent(gateway, CHAT, prompt_logprobs=0)["prompt_logprobs"]) > 10


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_continuation_is_scored_as_lm_eval_does(
    gateway: GatewayProcess, grpc_client: Client, max_tokens: int
) -> None:
    tokens = list(grpc_client.tokenize("import os.path").token_ids)
    asked = Settings(max_token_count=1, top_logprob_count=1, prompt_logprobs=True)
    expected = [token.logprob for token in grpc_client.generate(tokens, asked).wait().prompt_logprobs]
    fields = {"prompt": [tokens, tokens[:2]], "max_tokens": max_tokens, "logprobs": 1, "echo": True, "seed": 1}
    body = sent(gateway, COMPLETIONS, **fields)
    told = body["choices"][0]["logprobs"]["token_logprobs"]
    assert told[1 : len(tokens)] == expected
    assert len(told) == len(tokens) + max_tokens
    assert body["usage"]["completion_tokens"] == 2 * max_tokens
    if not max_tokens:
        assert body["choices"][0]["text"] == "import os.path"
        assert body["choices"][0]["finish_reason"] == "length"
    chunks = sent(gateway, COMPLETIONS, stream=True, **fields)["chunks"]
    parts = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == 0 and choice["logprobs"]]
    assert [logprob for part in parts for logprob in part["logprobs"]["token_logprobs"]] == told
    assert "".join(part["text"] for part in parts) == body["choices"][0]["text"]


def test_each_of_several_answers_has_its_prompts_log_probabilities(gateway: GatewayProcess) -> None:
    fields = {"prompt": ["import os.path", "import re"], "n": 2, "max_tokens": 3, "min_tokens": 3, "seed": 1}
    asked = {**fields, "logprobs": 1, "echo": True, "temperature": 1.5}
    whole = sent(gateway, COMPLETIONS, **asked, prompt_logprobs=1)["choices"]
    for first, second in (whole[:2], whole[2:]):
        assert first["prompt_logprobs"] == second["prompt_logprobs"]
        length = len(first["prompt_logprobs"])
        assert length > 2
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert first["logprobs"][name][:length] == second["logprobs"][name][:length]
            assert len(second["logprobs"][name]) == length + 3
    streamed: list[list[float | None]] = [[], [], [], []]
    for chunk in sent(gateway, COMPLETIONS, stream=True, **asked)["chunks"]:
        for choice in chunk["choices"]:
            if choice["logprobs"]:
                streamed[choice["index"]] += choice["logprobs"]["token_logprobs"]
    assert streamed == [choice["logprobs"]["token_logprobs"] for choice in whole]


@pytest.mark.parametrize("path", BODIES)
def test_the_stop_text_or_token_that_ended_an_answer_is_told(gateway: GatewayProcess, path: str) -> None:
    (whole,) = sent(gateway, path, return_token_ids=True, speculation="off")["choices"]
    assert whole["stop_reason"] is None
    text = whole["text"] if path == COMPLETIONS else whole["message"]["content"]
    word, token = text.split()[1], whole["token_ids"][4]
    for fields, reason in (({"stop": ["\u2603", word]}, word), ({"stop_token_ids": [token]}, token)):
        assert sent(gateway, path, **fields)["choices"][0]["stop_reason"] == reason
        last = sent(gateway, path, stream=True, **fields)["chunks"][-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", reason)


def test_vllms_older_names_of_structures_are_followed(gateway: GatewayProcess) -> None:
    for fields in (
        {"guided_regex": "(yes|no)!"},
        {"guided_choice": ["yes!", "no!"]},
        {"guided_json": {"enum": ["yes!", "no!"]}},
        {"guided_grammar": 'start: "yes!" | "no!"'},
    ):
        text = sent(gateway, COMPLETIONS, **fields)["choices"][0]["text"]
        assert text.strip('"') in ("yes!", "no!")


def test_only_allowed_tokens_are_chosen(gateway: GatewayProcess) -> None:
    fields: Any = {"allowed_token_ids": [70, 80], "return_token_ids": True, "max_tokens": 8}
    assert set(sent(gateway, COMPLETIONS, **fields)["choices"][0]["token_ids"]) <= {70, 80}


@pytest.mark.parametrize(
    ("path", "whole", "part"),
    [(CHAT, ChatCompletion, ChatCompletionChunk), (COMPLETIONS, Completion, CompletionChunk)],
    ids=["chat", "completion"],
)
def test_bodies_have_what_the_openapi_document_says_and_no_more(
    gateway: GatewayProcess, path: str, whole: type[BaseModel], part: type[BaseModel]
) -> None:
    logprobs: Any = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2, "echo": True}
    asked: Any = {**logprobs, "speculation": 4, "return_token_ids": True}
    whole.model_validate(sent(gateway, path, **asked, prompt_logprobs=1), extra="forbid")
    chunks = sent(gateway, path, **asked, stream=True, stream_options={"include_usage": True})["chunks"]
    for chunk in chunks:
        part.model_validate(chunk, extra="forbid")


def test_other_bodies_have_what_the_openapi_document_says_and_no_more(gateway: GatewayProcess) -> None:
    for path, body, kind in (
        ("/v1/models", None, ModelList),
        (f"/v1/models/{MODEL}", None, ModelCard),
        ("/tokenize", {"prompt": "Hi", "return_token_strs": True}, TokenizeBody),
        ("/detokenize", {"tokens": [70]}, DetokenizeBody),
        ("/health", None, HealthBody),
        ("/version", None, VersionBody),
        ("/v1/nothing", None, ErrorBody),
    ):
        kind.model_validate(gateway.send(path, body).body, extra="forbid")
    document = gateway.send("/openapi.json").body
    answer = document["paths"][CHAT]["post"]["responses"]["200"]["content"]
    schemas = document["components"]["schemas"]
    assert answer["application/json"]["schema"]["$ref"].removeprefix("#/components/schemas/") in schemas
    _, event = answer["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    for content in event["contentSchema"]["anyOf"]:
        assert content["$ref"].removeprefix("#/components/schemas/") in schemas
    fields = schemas["ChatRequest"]["properties"]
    assert {"type": "null"} in fields["seed"]["anyOf"]
    assert fields["service_tier"]["enum"] == ["auto", "default", None]


def test_ids_of_requests_come_back(gateway: GatewayProcess) -> None:
    assert sent(gateway, CHAT, request_id="mine-1")["id"] == "chatcmpl-mine-1"
    assert gateway.send(CHAT, {**CHAT_BODY, "request_id": "two words"}).error["param"] == "request_id"
    assert gateway.send("/version", headers={"x-request-id": "mine-2"}).headers["x-request-id"] == "mine-2"
    assert gateway.send("/v1/nothing").headers["x-request-id"].startswith("req_")


def test_a_stream_is_answered_before_its_first_token(
    services: LocalServices, gateway: GatewayProcess, grpc_client: Client
) -> None:
    body = json.dumps({**CHAT_BODY, "stream": True})
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    verifier = services.services["verifier"].process
    host, _, port = gateway.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        verifier.send_signal(signal.SIGSTOP)
        try:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            received = b""
            while b"\r\n\r\n" not in received:
                received += connection.recv(65536)
            until(lambda: grpc_client.status().processes[0].running_turn_count == 1)
        finally:
            verifier.send_signal(signal.SIGCONT)
        assert b" 200 " in received
        assert b"data: " not in received
        while piece := connection.recv(65536):
            received += piece
    assert b"data: [DONE]" in received
