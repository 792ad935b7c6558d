"""OpenAI's unmodified package uses tools through the Responses API: calls and reasoning are items,
streamed and whole, and the results of calls go back with the next response."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Message, Settings, TemplateOptions, Tool, ToolCall
from tests import tiny_models
from tests.chat_templates import read_tools
from tests.gateway_process import gateway_process
from tests.response_types import check_events, check_response

MODEL = "target"
QUESTION = "And in Ulm?"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"enum": ["Ulm", "Bonn"]}},
    "required": ["town"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "name": "weather", "description": "Tell it.", "parameters": WEATHER, "strict": True},
    {"type": "function", "name": "now"},
]
OF_TOOLS = TemplateOptions([Tool("weather", "Tell it.", WEATHER), Tool("now")])
SAMPLED: Any = {"temperature": 1.5, "max_output_tokens": 300, "extra_body": {"seed": 7}}
FORCED: Any = {"tools": TOOLS, "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": False}
SHORT = Settings(seed=7, max_token_count=20)
SHORT_HERE: Any = {"max_output_tokens": 20, "extra_body": {"seed": 7}}

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path_factory.mktemp("model") / MODEL)
    read_tools(directory)
    with LocalServices(PairSettings(target=str(directory), draft="")) as local:
        yield local


@pytest.fixture(scope="module")
def api(services: LocalServices) -> Iterator[openai.OpenAI]:
    with (
        gateway_process(services.orchestrator_address, "--reasoning-parser", "qwen3") as gateway,
        openai.OpenAI(base_url=f"http://{gateway.address}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client


def test_a_forced_call_is_an_item_that_follows_its_schema(api: openai.OpenAI) -> None:
    response = api.responses.create(model=MODEL, input=QUESTION, **FORCED, **SAMPLED)
    check_response(response)
    (call,) = response.output
    assert (call.type, response.status, response.output_text) == ("function_call", "completed", "")
    assert call.name == "weather"
    assert json.loads(call.arguments)["town"] in ("Ulm", "Bonn")
    assert [(tool.name, tool.strict) for tool in response.tools if tool.type == "function"] == [
        ("weather", True),
        ("now", False),
    ]
    assert (response.parallel_tool_calls, response.to_dict()["tool_choice"]) == (False, FORCED["tool_choice"])
    assert api.responses.retrieve(response.id) == response


def test_a_call_is_streamed_as_the_whole_response_has_it(api: openai.OpenAI) -> None:
    whole = api.responses.create(model=MODEL, input=QUESTION, **FORCED, **SAMPLED)
    events: list[Any] = list(api.responses.create(model=MODEL, input=QUESTION, stream=True, **FORCED, **SAMPLED))
    check_events(events)
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    ended = ["function_call_arguments.done", "output_item.done", "completed"]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        *["function_call_arguments.delta"] * len(deltas),
        *ended,
    ]
    (call,) = events[-1].response.output
    (expected,) = whole.output
    assert expected.type == "function_call"
    assert "".join(deltas) == call.arguments == expected.arguments
    assert call.call_id != expected.call_id, "each response has ids of its own"
    again = list(api.responses.retrieve(events[-1].response.id, stream=True, starting_after=4))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events[5:]]


def test_the_output_of_a_call_goes_back_by_either_way(api: openai.OpenAI, grpc_client: Client) -> None:
    first = api.responses.create(model=MODEL, input=QUESTION, **FORCED, **SAMPLED)
    (call,) = first.output
    assert call.type == "function_call"
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "clear"}
    following = api.responses.create(
        model=MODEL, input=[output], previous_response_id=first.id, tools=TOOLS, **SHORT_HERE
    )
    check_response(following)
    assert following.usage is not None
    assert following.usage.input_tokens_details.cached_tokens > 0
    items: Any = list(api.responses.input_items.list(following.id))
    assert [(item.type, item.call_id, item.output) for item in items] == [
        ("function_call_output", call.call_id, "clear")
    ]
    history: Any = [{"role": "user", "content": QUESTION}, call.to_dict(), output]
    elsewhere = api.responses.create(model=MODEL, input=history, tools=TOOLS, **SHORT_HERE)
    called = Message("assistant", "", [ToolCall("weather", call.arguments, call.call_id)])
    said = [("user", QUESTION), called, Message("tool", "clear", tool_call_id=call.call_id)]
    with grpc_client.chat(template_options=OF_TOOLS) as chat:
        expected = chat.send(said, SHORT).wait()
    assert elsewhere.output_text == expected.text
    listed: Any = list(api.responses.input_items.list(elsewhere.id, order="asc"))
    assert [item.type for item in listed] == ["message", "function_call", "function_call_output"]


def test_tools_are_those_of_the_response_alone(api: openai.OpenAI) -> None:
    first = api.responses.create(model=MODEL, input=QUESTION, tools=TOOLS, **SHORT_HERE)
    counts = {}
    for name, tools in (("the same", TOOLS), ("fewer", TOOLS[1:]), ("none", [])):
        following = api.responses.create(
            model=MODEL, input="So?", previous_response_id=first.id, tools=tools, **SHORT_HERE
        )
        assert following.usage is not None
        counts[name] = following.usage.input_tokens
        assert len(following.tools) == len(tools)
    assert counts["the same"] > counts["fewer"] > counts["none"]


def test_reasoning_is_an_item_of_its_own(api: openai.OpenAI) -> None:
    thought: Any = {"structured_outputs": {"regex": "<think>\\n(so|no)\\n</think>\\n(yes|no)"}}
    asked: Any = {"model": MODEL, "input": QUESTION, "extra_body": thought}
    response = api.responses.create(**asked)
    check_response(response)
    reasoning, message = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text in ("so", "no")
    assert (message.type, response.output_text in ("yes", "no")) == ("message", True)
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    events: list[Any] = list(api.responses.create(stream=True, **asked))
    check_events(events)
    kinds = [event.type for event in events]
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    again: Any = [{"role": "user", "content": QUESTION}, *(item.to_dict() for item in response.output)]
    following = api.responses.create(
        model=MODEL, input=[*again, {"role": "user", "content": "So?"}], max_output_tokens=2
    )
    assert following.status == "incomplete"


def test_items_of_a_conversation_are_those_of_its_responses(services: LocalServices) -> None:
    with (
        gateway_process(services.orchestrator_address, "--reasoning-parser", "deepseek_r1") as gateway,
        openai.OpenAI(base_url=f"http://{gateway.address}/v1", api_key="unused", max_retries=0) as client,
    ):
        conversation = client.conversations.create().id
        asked: Any = {"model": MODEL, "input": QUESTION, "conversation": conversation}
        responses = [
            client.responses.create(**asked, **SHORT_HERE),
            client.responses.create(**asked, extra_body={"structured_outputs": {"regex": "(yes|no)"}}),
        ]
        assert [[item.type for item in response.output] for response in responses] == [["reasoning"], ["message"]]
        items = [item.to_dict() for item in client.conversations.items.list(conversation, order="asc")]
        answers = [item for item in items if item.get("role") != "user"]
        assert answers == [item.to_dict() for response in responses for item in response.output]


def test_a_conversation_has_no_tools(api: openai.OpenAI) -> None:
    conversation = api.conversations.create()
    with pytest.raises(openai.BadRequestError) as refused:
        api.responses.create(model=MODEL, input=QUESTION, conversation=conversation.id, tools=TOOLS)
    assert refused.value.param == "tools"
