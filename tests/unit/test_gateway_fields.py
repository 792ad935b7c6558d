"""Fields of HTTP requests become the client's settings, each of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.chat_completions import ChatRequest
from gateway.completions import CompletionRequest
from gateway.errors import ApiError, error_of_validation
from slipstream.client import Settings, Structure

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({**CHAT, **fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Settings()),
        ({"temperature": 0, "top_p": 0.5, "min_p": 0.1}, Settings(temperature=0, top_p=0.5, min_p=0.1)),
        ({"top_k": 5}, Settings(top_k=5)),
        ({"top_k": -1}, Settings(top_k=0)),
        ({"presence_penalty": 1, "frequency_penalty": -1}, Settings(presence_penalty=1, frequency_penalty=-1)),
        ({"repetition_penalty": 1.5, "seed": 2**63 - 1}, Settings(repetition_penalty=1.5, seed=2**63 - 1)),
        ({"logit_bias": {"5": -100}}, Settings(logit_bias={5: -100})),
        ({"stop": "a"}, Settings(stop_strings=["a"])),
        ({"stop": ["a", "b"], "stop_token_ids": [3]}, Settings(stop_strings=["a", "b"], stop_token_ids=[3])),
        ({"min_tokens": 2, "ignore_eos": True}, Settings(min_token_count=2, ignore_end_tokens=True)),
        ({"include_stop_str_in_output": True}, Settings(include_stop_in_text=True)),
        ({"speculation": "off"}, Settings(draft_length=0)),
        ({"speculation": "on"}, Settings(draft_length="adaptive")),
        ({"speculation": 3}, Settings(draft_length=3)),
        ({"allowed_token_ids": [5, 6]}, Settings(allowed_token_ids=[5, 6])),
        ({"metadata": {"task": "sums", "a": "b"}}, Settings(task="sums")),
        ({"metadata": {"do_not_collect": "true"}}, Settings(do_not_collect=True)),
        ({"metadata": {"do_not_collect": "false"}}, Settings()),
        ({"store": False, "metadata": {"do_not_collect": "false"}}, Settings(do_not_collect=True)),
        ({"prompt_logprobs": 2}, Settings(top_logprob_count=2, prompt_logprobs=True, token_bytes=True)),
    ],
    ids=str,
)
def test_fields_become_settings(fields: dict[str, Any], expected: Settings) -> None:
    assert chat(**fields).settings().message() == expected.message()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Structure(json_schema='{"type": "object"}')),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}},
            Structure(json_schema='{"type": "null"}'),
        ),
        ({"structured_outputs": {"regex": "a+"}}, Structure(regex="a+")),
        ({"structured_outputs": {"choice": ["a"]}}, Structure(choices=["a"])),
        ({"structured_outputs": {"grammar": "start: "}}, Structure(grammar="start: ")),
        ({"structured_outputs": {"json": {"type": "null"}}}, Structure(json_schema='{"type": "null"}')),
        ({"guided_json": {"type": "null"}}, Structure(json_schema='{"type": "null"}')),
        ({"guided_json": '{"type": "null"}'}, Structure(json_schema='{"type": "null"}')),
        ({"guided_regex": "a+"}, Structure(regex="a+")),
        ({"guided_choice": ["a"]}, Structure(choices=["a"])),
        ({"guided_grammar": "start: "}, Structure(grammar="start: ")),
    ],
    ids=str,
)
def test_formats_become_structures(fields: dict[str, Any], expected: Structure | None) -> None:
    assert chat(**fields).structure() == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, "structured_outputs"),
    ],
    ids=str,
)
def test_an_answer_has_one_structure(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**fields).structure()
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2]], [[1], [2]])],
    ids=str,
)
def test_a_prompt_is_a_text_token_ids_or_a_list_of_either(prompt: Any, expected: list[Any]) -> None:
    assert CompletionRequest.model_validate({"model": "m", "prompt": prompt}).prompts == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"-1": 0}},
        {"logit_bias": {"1e3": 0}},
        {"stream_options": {}},
        {"max_tokens": 1, "max_completion_tokens": 1},
        {"top_logprobs": 1},
        {"prompt_logprobs": 1, "stream": True},
    ],
    ids=str,
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        chat(**fields).settings()


@pytest.mark.parametrize("value", ["yes", "True", "", True, 1, None])
def test_a_wrong_opt_out_is_named_with_what_is_right(value: object) -> None:
    body = {**CHAT, "metadata": {"do_not_collect": value}}
    with pytest.raises(ValidationError) as refused:
        ChatRequest.model_validate(body)
    error = error_of_validation([{**each, "loc": ("body", *each["loc"])} for each in refused.value.errors()], body)
    assert (error.param, str(error)) == (
        "metadata.do_not_collect",
        "metadata.do_not_collect: Input should be 'true' or 'false'",
    )


def test_the_openapi_document_has_the_keys_of_metadata_that_mean_something() -> None:
    described, nothing = ChatRequest.model_json_schema()["properties"]["metadata"]["anyOf"]
    assert nothing == {"type": "null"}
    assert described["properties"]["do_not_collect"]["enum"] == ["true", "false"]
    assert {*described["properties"]} == {"do_not_collect", "task"}


@pytest.mark.parametrize("value", ["1", True, [1]])
def test_a_value_is_not_converted(value: object) -> None:
    with pytest.raises(ValidationError):
        chat(n=value)


def test_a_value_that_asks_for_nothing_has_its_own_type() -> None:
    assert chat(store=False).model == "m"
    with pytest.raises(ValidationError):
        chat(store=0)
    with pytest.raises(ApiError, match="use /v1/responses"):
        chat(store=True).settings()
