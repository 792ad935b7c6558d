"""OpenAI's unmodified package uses tools: the model reads them, calls are enforced or read from its
text, and their results go back to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gateway.chat_completions import ChatRequest
from gateway.tool_formats import TOOL_FORMATS
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Message, Settings, Structure, TemplateOptions, Tool, ToolCall
from tests import tiny_models
from tests.chat_templates import read_tools
from tests.gateway_process import GatewayProcess, gateway_process

MODEL = "target"
MESSAGES: Any = [{"role": "user", "content": "And in Ulm?"}]
WEATHER: dict[str, Any] = {
    "type": "object",
    "description": "Where and when.",
    "properties": {
        "town": {"type": "string", "pattern": "^[A-Z][a-z]{2,5}$", "description": "Where?"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "$defs": {"unit": {"enum": ["C", "F"]}},
    "required": ["town", "days", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Tell it.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "strict": True}},
]
SAMPLED: Any = {"seed": 7, "temperature": 1.5, "max_tokens": 400}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
OF_TOOLS = TemplateOptions([Tool("weather", "Tell it.", WEATHER), Tool("now")])

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path_factory.mktemp("model") / MODEL)
    read_tools(directory)
    with LocalServices(PairSettings(target=str(directory), draft="")) as local:
        yield local


@pytest.fixture(scope="module")
def gateways(services: LocalServices) -> Iterator[dict[str, GatewayProcess]]:
    with (
        gateway_process(services.orchestrator_address) as hermes,
        gateway_process(services.orchestrator_address, "--tool-call-parser", "llama3_json") as llama3,
    ):
        yield {"hermes": hermes, "llama3_json": llama3}


@pytest.fixture(scope="module")
def apis(gateways: dict[str, GatewayProcess]) -> dict[str, openai.OpenAI]:
    return {
        name: openai.OpenAI(base_url=f"http://{running.address}/v1", api_key="unused", max_retries=0)
        for name, running in gateways.items()
    }


def follows_its_schema(name: str, arguments: str) -> bool:
    """Return whether arguments are what the schema of a tool allows."""
    told = json.loads(arguments)
    if name == "now":
        return bool(told == {})
    return (
        list(told) == ["town", "days", "unit"]
        and re.fullmatch("[A-Z][a-z]{2,5}", told["town"]) is not None
        and told["days"] in range(1, 10)
        and told["unit"] in ("C", "F")
    )


def streamed(api: openai.OpenAI, **fields: Any) -> tuple[str, list[tuple[str, str]], str | None]:
    """Return content, calls and finish reason of a streamed answer."""
    content, calls, reason = "", list[list[str]](), None
    for chunk in api.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **fields):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for part in choice.delta.tool_calls or ():
                assert part.function is not None
                if part.id:
                    assert (part.type, part.index, part.function.arguments) == ("function", len(calls), "")
                    calls.append([part.function.name or "", ""])
                calls[part.index][1] += part.function.arguments or ""
    return content, [(name, arguments) for name, arguments in calls], reason


@pytest.mark.parametrize("parser", TOOL_FORMATS)
@pytest.mark.parametrize("choice", ["required", "named", "allowed"])
def test_a_forced_call_follows_its_schema_and_is_grpcs_text(
    apis: dict[str, openai.OpenAI], grpc_client: Client, parser: str, choice: str
) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    fields = {"tools": TOOLS, "tool_choice": {"required": "required", "named": NAMED, "allowed": allowed}[choice]}
    answer = apis[parser].chat.completions.create(
        model=MODEL, messages=MESSAGES, parallel_tool_calls=False, **fields, **SAMPLED
    )
    (chosen,) = answer.choices
    assert chosen.message.tool_calls is not None
    (call,) = chosen.message.tool_calls
    assert call.type == "function"
    assert choice == "required" or call.function.name == "weather"
    assert follows_its_schema(call.function.name, call.function.arguments)
    assert (chosen.message.content, chosen.finish_reason) == (None, "tool_calls")
    asked = ChatRequest.model_validate(
        {"model": MODEL, "messages": MESSAGES, "parallel_tool_calls": False, **fields}
    ).tool_use()
    settings = Settings(seed=7, temperature=1.5, max_token_count=400, structure=asked.structure(TOOL_FORMATS[parser]))
    expected = grpc_client.answer([("user", "And in Ulm?")], settings, template_options=OF_TOOLS).wait()
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.prompt_token_count
    assert f'{{"name": "{call.function.name}"' in expected.text and call.function.arguments in expected.text
    whole = (None or "", [(call.function.name, call.function.arguments)], "tool_calls")
    assert streamed(apis[parser], parallel_tool_calls=False, **fields, **SAMPLED) == whole


def test_several_calls_may_be_forced_and_each_answer_has_its_own(apis: dict[str, openai.OpenAI]) -> None:
    create = apis["hermes"].chat.completions.create
    answer = create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required", n=4, **SAMPLED)
    ids, counts = set(), []
    for choice in answer.choices:
        calls = choice.message.tool_calls or []
        counts.append(len(calls))
        for call in calls if choice.finish_reason == "tool_calls" else calls[:-1]:
            assert call.type == "function"
            assert follows_its_schema(call.function.name, call.function.arguments)
            ids.add(call.id)
    assert min(counts) >= 1 and max(counts) > 1, counts
    assert len(ids) >= sum(counts) - len(counts)


CALLS = (
    'Well\\.\\n<tool_call>\\n\\{"name": "now", "arguments": \\{\\}\\}\\n</tool_call>\\n'
    '<tool_call>\\{"name": "weather", "arguments": \\{"town": "(Ulm|Bonn)"\\}\\}</tool_call>'
)


def test_calls_that_the_model_chose_are_read_from_its_text(apis: dict[str, openai.OpenAI], grpc_client: Client) -> None:
    settings = Settings(seed=7, temperature=1.5, max_token_count=400, structure=Structure(regex=CALLS))
    text = grpc_client.answer([("user", "And in Ulm?")], settings, template_options=OF_TOOLS).wait().text
    town = "Ulm" if "Ulm" in text else "Bonn"
    fields: Any = {**SAMPLED, "extra_body": {"structured_outputs": {"regex": CALLS}}}
    calls = [("now", "{}"), ("weather", f'{{"town": "{town}"}}')]
    assert streamed(apis["hermes"], tools=TOOLS, **fields) == ("Well.", calls, "tool_calls")
    one = streamed(apis["hermes"], tools=TOOLS, parallel_tool_calls=False, **fields)
    assert one == ("Well.", calls[:1], "tool_calls")
    untold = grpc_client.answer([("user", "And in Ulm?")], settings).wait().text
    for chosen in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        assert streamed(apis["hermes"], **chosen, **fields) == (untold, [], "stop")
    assert streamed(apis["llama3_json"], tools=TOOLS, **fields) == (text, [], "stop")


def test_each_token_of_a_streamed_call_is_told_once(apis: dict[str, openai.OpenAI]) -> None:
    fields: Any = {"tools": TOOLS, "tool_choice": NAMED, "logprobs": True, "top_logprobs": 1, **SAMPLED}
    fields["extra_body"] = {"return_token_ids": True}
    create = apis["hermes"].chat.completions.create
    whole = create(model=MODEL, messages=MESSAGES, **fields).choices[0]
    chunks = [chunk.choices[0] for chunk in create(model=MODEL, messages=MESSAGES, stream=True, **fields)]
    assert whole.model_extra is not None and whole.logprobs is not None
    assert [token for chunk in chunks for token in (chunk.model_extra or {})["token_ids"]] == whole.model_extra[
        "token_ids"
    ]
    told = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content or ()]
    assert told == whole.logprobs.content


def test_results_of_tools_go_back_to_the_model(apis: dict[str, openai.OpenAI], grpc_client: Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Ulm"}'}}
    asked: Any = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "clear"}]},
    ]
    told = [
        ("user", "And in Ulm?"),
        Message("assistant", "", [ToolCall("weather", '{"town": "Ulm"}', "c1")]),
        Message("tool", "clear", tool_call_id="c1"),
    ]
    settings = Settings(seed=7, temperature=1.5, max_token_count=20)
    options = TemplateOptions(OF_TOOLS.tools, {"enable_thinking": False})
    expected = grpc_client.answer(told, settings, template_options=options).wait()
    body: Any = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = apis["hermes"].chat.completions.create(
        model=MODEL, messages=asked, tools=TOOLS, seed=7, temperature=1.5, max_tokens=20, extra_body=body
    )
    assert answer.choices[0].message.content == expected.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.prompt_token_count


def test_tokenize_counts_tools(gateways: dict[str, GatewayProcess], grpc_client: Client) -> None:
    body = {"messages": MESSAGES, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}}
    options = TemplateOptions(OF_TOOLS.tools, {"enable_thinking": False})
    expected = grpc_client.tokenize([("user", "And in Ulm?")], template_options=options)
    assert gateways["hermes"].send("/tokenize", body).body["tokens"] == list(expected.token_ids)


def function(parameters: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


UNENFORCEABLE = {"type": "object", "properties": {"a": {"type": "array", "minContains": 3}}}
COSTLY = {
    "properties": {"a": {"allOf": [{"type": "integer", "multipleOf": each} for each in (4999, 4993)]}},
    "required": ["a"],
}
"""A small schema that takes more time or memory than a structure may."""
NESTED = '{"items": ' * 3000 + "{}" + "}" * 3000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [function(UNENFORCEABLE)], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [*TOOLS, function(UNENFORCEABLE)], "tool_choice": "required"}, "tools[2].function.parameters"),
        (
            {
                "tools": [function({}), function(UNENFORCEABLE, "g")],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            "tools[1].function.parameters",
        ),
        ({"tools": [function({"type": "string"})], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [function(COSTLY)], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [function({"const": "\ud800"})]}, "tools[0].function.parameters"),
        ({"tools": [function({"a": "\ud800"})], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [function([])]}, "tools[0].function.parameters"),
        ({"tools": [function({}, "a b")]}, "tools[0].function.name"),
        ({"tools": [function({}), function({})]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "custom": {}}]}, "tools[0].custom"),
        ({"tools": TOOLS * 65}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
            },
            "tool_choice.allowed_tools.mode",
        ),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"chat_template_kwargs": {"thinks": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "tool_call_id": "c" * 129, "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}],
                    },
                    *MESSAGES,
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "x", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
                ]
            },
            "messages[0].tool_calls",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_with_tools_is_named(gateways: dict[str, GatewayProcess], fields: Any, param: str) -> None:
    answer = gateways["hermes"].send(
        "/v1/chat/completions", {"model": MODEL, "messages": MESSAGES, "max_tokens": 3, **fields}
    )
    assert (answer.status, answer.error["param"]) == (400, param), answer.error


def test_a_schema_of_too_many_levels_is_refused(gateways: dict[str, GatewayProcess]) -> None:
    body = json.dumps({"model": MODEL, "messages": MESSAGES, "tools": [function("NESTED")], "tool_choice": "required"})
    answer = gateways["hermes"].send("/v1/chat/completions", body.replace('"NESTED"', NESTED).encode())
    assert answer.status == 400, answer.body
