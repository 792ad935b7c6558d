"""Anthropic's unmodified package talks to the gateway: answers, streams, tools, reasoning and
counts. The text is that of gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Message, Settings, TemplateOptions, Tool, ToolCall
from tests import tiny_models
from tests.chat_templates import read_tools
from tests.gateway_process import GatewayProcess, gateway_process

MODEL = "target"
QUESTION: Any = [{"role": "user", "content": "And in Ulm?"}]
SCHEMA = {
    "type": "object",
    "properties": {"town": {"enum": ["Ulm", "Bonn"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["town", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [{"name": "weather", "description": "Tell it.", "input_schema": SCHEMA}]
OPTIONS = TemplateOptions([Tool("weather", "Tell it.", SCHEMA)])
SAMPLED: Any = {"max_tokens": 40, "extra_body": {"seed": 7, "temperature": 1.0}}
IN_GRPC = Settings(max_token_count=40, temperature=1.0, seed=7)

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path_factory.mktemp("model") / MODEL)
    read_tools(directory)
    with LocalServices(PairSettings(target=str(directory), draft="")) as local:
        yield local


@pytest.fixture(scope="module")
def gateway(services: LocalServices) -> Iterator[GatewayProcess]:
    with gateway_process(services.orchestrator_address, "--reasoning-parser", "deepseek_r1") as running:
        yield running


@pytest.fixture(scope="module")
def plain_gateway(services: LocalServices) -> Iterator[GatewayProcess]:
    with gateway_process(services.orchestrator_address) as running:
        yield running


def client_of(gateway: GatewayProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"http://{gateway.address}", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def api(plain_gateway: GatewayProcess) -> Iterator[anthropic.Anthropic]:
    with client_of(plain_gateway) as client:
        yield client


def test_an_answer_is_grpcs_text_and_its_stream_is_the_same(api: anthropic.Anthropic, grpc_client: Client) -> None:
    expected = grpc_client.answer([("system", "Be brief."), ("user", "And in Ulm?")], IN_GRPC).wait()
    answer = api.messages.create(model=MODEL, system="Be brief.", messages=QUESTION, **SAMPLED)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == expected.text
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == len(expected.token_ids)
    cached = answer.usage.cache_read_input_tokens
    assert answer.usage.input_tokens + (cached or 0) == expected.prompt_token_count
    with api.messages.stream(model=MODEL, system="Be brief.", messages=QUESTION, **SAMPLED) as stream:
        assert "".join(stream.text_stream) == expected.text
        streamed = stream.get_final_message()
    assert (len(streamed.content), streamed.stop_reason) == (1, answer.stop_reason)
    assert streamed.usage.output_tokens == answer.usage.output_tokens


def test_the_events_of_a_stream_come_in_anthropics_order(api: anthropic.Anthropic) -> None:
    events = [event.type for event in api.messages.create(model=MODEL, messages=QUESTION, stream=True, **SAMPLED)]
    assert events[:2] == ["message_start", "content_block_start"]
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(events[2:-3]) == {"content_block_delta"}


def test_a_stop_sequence_is_told(api: anthropic.Anthropic, grpc_client: Client) -> None:
    text = grpc_client.answer([("user", "And in Ulm?")], IN_GRPC).wait().text
    stop = text[8:12]
    answer = api.messages.create(model=MODEL, messages=QUESTION, stop_sequences=[stop], **SAMPLED)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == text[: text.index(stop)]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_forced_call_follows_its_schema_and_its_stream_is_the_same(api: anthropic.Anthropic, choice: Any) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
        **SAMPLED,
        "max_tokens": 400,
    }
    answer = api.messages.create(**asked)
    (call,) = answer.content
    assert call.type == "tool_use" and call.name == "weather" and answer.stop_reason == "tool_use"
    assert call.input["town"] in ("Ulm", "Bonn") and call.input["days"] in range(1, 10)
    with api.messages.stream(**asked) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use" and (streamed.name, streamed.input) == (call.name, call.input)


def test_results_of_tools_are_in_the_prompt(api: anthropic.Anthropic, grpc_client: Client) -> None:
    said: Any = [
        *QUESTION,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see.", "cache_control": {"type": "ephemeral"}},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"town": "Ulm", "days": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "clear"}]},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    in_grpc = [
        ("user", "And in Ulm?"),
        Message("assistant", "Let me see.", [ToolCall("weather", {"town": "Ulm", "days": 2}, "c1")]),
        Message("tool", "clear", tool_call_id="c1"),
        ("user", "So?"),
    ]
    expected = grpc_client.answer(in_grpc, IN_GRPC, template_options=OPTIONS).wait()
    answer = api.messages.create(model=MODEL, messages=said, tools=TOOLS, **SAMPLED)
    assert answer.content[0].text == expected.text
    counted = api.messages.count_tokens(model=MODEL, messages=said, tools=TOOLS)
    assert counted.input_tokens == expected.prompt_token_count


def test_reasoning_is_a_block_and_goes_back_as_it_came(gateway: GatewayProcess, grpc_client: Client) -> None:
    """The tiny model never writes the mark that ends reasoning, so all of its text is reasoning."""
    expected = grpc_client.answer([("user", "And in Ulm?")], IN_GRPC).wait().text
    with client_of(gateway) as api:
        asked: Any = {"model": MODEL, "messages": QUESTION, "thinking": {"type": "adaptive"}, **SAMPLED}
        answer = api.messages.create(**asked)
        (block,) = answer.content
        assert block.type == "thinking" and block.thinking.strip() == expected.strip()
        with api.messages.stream(**asked) as stream:
            (streamed,) = stream.get_final_message().content
        assert streamed.type == "thinking" and streamed.thinking == block.thinking
        back: Any = [*QUESTION, {"role": "assistant", "content": [block.model_dump()]}, *QUESTION]
        in_grpc = [
            ("user", "And in Ulm?"),
            ("assistant", f"<think>\n{block.thinking}\n</think>\n\n"),
            ("user", "And in Ulm?"),
        ]
        counted = api.messages.count_tokens(model=MODEL, messages=back)
        assert counted.input_tokens == len(grpc_client.tokenize(in_grpc).token_ids)


def test_a_format_is_followed(api: anthropic.Anthropic) -> None:
    output: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = api.messages.create(model=MODEL, messages=QUESTION, output_config=output, **{**SAMPLED, "max_tokens": 400})
    assert json.loads(answer.content[0].text).keys() == {"town", "days"}


def test_a_refusal_has_anthropics_form_and_class(api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        api.messages.create(model=MODEL, messages=[{"role": "assistant", "content": "The"}], max_tokens=4)
    body: Any = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == "messages[0].role" and body["request_id"]
    with pytest.raises(anthropic.NotFoundError):
        api.messages.create(model="other", messages=QUESTION, max_tokens=4)
    with pytest.raises(anthropic.BadRequestError, match="image"):
        api.messages.create(
            model=MODEL,
            messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}],
            max_tokens=4,
        )
    with pytest.raises(anthropic.BadRequestError, match="input_schema"):
        api.messages.create(
            model=MODEL,
            messages=QUESTION,
            tools=[{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"not": {}}}}}],
            tool_choice={"type": "any"},
            max_tokens=4,
        )


def test_fields_of_the_prompt_are_named_as_the_caller_writes_them(plain_gateway: GatewayProcess) -> None:
    """The contract counts the system message and results of tools as messages too."""
    asked = {"model": MODEL, "messages": QUESTION, "max_tokens": 4}
    empty = {"role": "user", "content": [{"type": "text", "text": ""}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]}
    fields = {"system": "Be brief.", "messages": [result, empty]}
    tool = {"name": "f", "input_schema": {"type": "object", "title": "\ud800"}}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        counted = {} if path.endswith("tokens") else {"max_tokens": 4}
        for more, param in ((fields, "messages[1].content"), ({"tools": [tool]}, "tools[0].input_schema")):
            body = {name: value for name, value in asked.items() if name != "max_tokens"} | counted | more
            assert plain_gateway.send(path, body).error["param"] == param


def test_a_stream_ends_without_openais_mark(plain_gateway: GatewayProcess) -> None:
    answer = plain_gateway.send("/v1/messages", {"model": MODEL, "messages": QUESTION, "max_tokens": 4, "stream": True})
    assert answer.status == 200 and "[DONE]" not in answer.body
    assert answer.body.rstrip().rpartition("event: ")[2].startswith("message_stop")
