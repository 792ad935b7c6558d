"""Each row of the table of the gateway's fields holds: a supported field is taken, a refused one is
named. docs/reference/http.md is made from the same models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.chat_completions import ChatMessage, ChatRequest
from gateway.completions import CompletionRequest
from gateway.fields import Fields
from slipstream.cli.local import LocalServices, PairSettings
from tests.gateway_process import GatewayProcess, gateway_process

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "embedded-target", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    COMPLETIONS: {"model": "embedded-target", "prompt": "import ", "max_tokens": 2},
}
KINDS: dict[str, type[Fields]] = {CHAT: ChatRequest, COMPLETIONS: CompletionRequest}

COMMON: dict[str, dict[str, Any]] = {
    "model": {"model": "embedded-target"},
    "stream": {"stream": False},
    "stream_options": {"stream_options": {"include_usage": True}, "stream": True},
    "n": {"n": 2},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5, "temperature": 1},
    "top_k": {"top_k": -1},
    "min_p": {"min_p": 0.1},
    "presence_penalty": {"presence_penalty": 1},
    "frequency_penalty": {"frequency_penalty": -1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "logit_bias": {"logit_bias": {"70": 100}},
    "seed": {"seed": 2**63 - 1},
    "stop": {"stop": ["a", "b"]},
    "stop_token_ids": {"stop_token_ids": [70]},
    "include_stop_str_in_output": {"include_stop_str_in_output": True, "stop": "a"},
    "min_tokens": {"min_tokens": 2},
    "ignore_eos": {"ignore_eos": True},
    "structured_outputs": {"structured_outputs": {"choice": ["yes", "no"]}},
    "guided_json": {"guided_json": {"enum": [1, 2]}},
    "guided_regex": {"guided_regex": "[ab]"},
    "guided_choice": {"guided_choice": ["yes", "no"]},
    "guided_grammar": {"guided_grammar": 'start: "a" | "b"'},
    "allowed_token_ids": {"allowed_token_ids": [70, 80]},
    "prompt_logprobs": {"prompt_logprobs": 20},
    "request_id": {"request_id": "mine"},
    "return_token_ids": {"return_token_ids": True},
    "user": {"user": "ann"},
    "speculation": {"speculation": 4},
}
"""A right value of each field that both endpoints have, with the fields that it needs."""
TAKEN: dict[str, dict[str, dict[str, Any]]] = {
    CHAT: {
        **COMMON,
        "messages": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        "max_tokens": {"max_tokens": 1},
        "max_completion_tokens": {"max_completion_tokens": 1, "max_tokens": None},
        "logprobs": {"logprobs": True},
        "top_logprobs": {"logprobs": True, "top_logprobs": 20},
        "response_format": {"response_format": {"type": "text"}},
        "prediction": {"prediction": {"type": "content", "content": "Hello"}},
    },
    COMPLETIONS: {
        **COMMON,
        "prompt": {"prompt": [[70], [80, 90]]},
        "max_tokens": {"max_tokens": 0, "echo": True},
        "echo": {"echo": True},
        "logprobs": {"logprobs": 20},
    },
}

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with LocalServices(PairSettings(draft="")) as local, gateway_process(local.orchestrator_address) as running:
        yield running


@pytest.mark.parametrize("path", TAKEN)
def test_each_supported_field_has_an_example_here(path: str) -> None:
    assert TAKEN[path].keys() == KINDS[path].model_fields.keys()


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in TAKEN for name in TAKEN[path]])
def test_a_supported_field_is_taken(gateway: GatewayProcess, path: str, name: str) -> None:
    answer = gateway.send(path, {**BODIES[path], **TAKEN[path][name]})
    assert answer.status == 200, answer.body


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in KINDS for name in KINDS[path].REFUSED])
def test_a_refused_field_is_named_and_its_harmless_values_are_taken(
    gateway: GatewayProcess, path: str, name: str
) -> None:
    refused = gateway.send(path, {**BODIES[path], name: ["a value that asks for something"]})
    assert (refused.status, refused.error["param"], refused.error["code"]) == (400, name, "unsupported_parameter")
    for value in (None, *KINDS[path].REFUSED[name].harmless):
        assert gateway.send(path, {**BODIES[path], name: value}).status == 200


@pytest.mark.parametrize("name", ChatMessage.REFUSED)
def test_a_refused_field_of_a_message_is_named(gateway: GatewayProcess, name: str) -> None:
    message = {"role": "user", "content": "Hi", name: ["a value that asks for something"]}
    refused = gateway.send(CHAT, {**BODIES[CHAT], "messages": [message]})
    assert (refused.status, refused.error["param"]) == (400, f"messages[0].{name}")
