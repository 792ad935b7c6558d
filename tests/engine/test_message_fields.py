"""Messages, tools and variables of requests: what they become, and which field a refusal names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from orchestrator.contract.commands import generation_of, message_of, session_of
from orchestrator.contract.messages import MAX_MESSAGES, MAX_TOOLS, message_message, messages_of, options_message
from orchestrator.contract.tokens import tokenization_of
from orchestrator.sessions.admission.principal import ANONYMOUS
from orchestrator.sessions.conversation.messages import Message, TemplateOptions, Tool, ToolCall, from_user
from slipstream.errors import InvalidFieldsError
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1 import session_pb2

USER, ASSISTANT, TOOL = session_pb2.ROLE_USER, session_pb2.ROLE_ASSISTANT, session_pb2.ROLE_TOOL
CALL = session_pb2.ToolCall(id="c", name="now", arguments='{"zone": "é"}')


def say(role: Any, content: str = "", **more: Any) -> session_pb2.Message:
    return session_pb2.Message(role=role, content=content, **more)


def parts(*texts: str) -> list[session_pb2.ContentPart]:
    return [session_pb2.ContentPart(text=text) for text in texts]


def asked(*messages: session_pb2.Message, **more: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(conversation=pb.MessageList(messages=messages), **more)


def violations(call: Callable[[], object]) -> list[str]:
    with pytest.raises(InvalidFieldsError) as caught:
        call()
    return [violation.field for violation in caught.value.violations]


def test_parts_are_one_text_and_a_tool_may_return_nothing() -> None:
    said = [say(USER, parts=parts("a", "", "b")), say(ASSISTANT, tool_calls=[CALL]), say(TOOL, tool_call_id="c")]
    converted = messages_of(said, "messages", ends_with_user=True)
    call = ToolCall("c", "now", '{"zone": "é"}')
    assert converted == (*from_user("ab"), Message("assistant", "", (call,)), Message("tool", "", tool_call_id="c"))
    assert messages_of([*map(message_message, converted)], "messages", ends_with_user=True) == converted


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([say(USER)], ["messages[0].content"]),
        ([say(USER, parts=parts("", ""))], ["messages[0].content"]),
        ([say(USER, "a", parts=parts("b"))], ["messages[0].parts"]),
        ([say(USER, parts=[session_pb2.ContentPart(), *parts("a")])], ["messages[0].parts[0]"]),
        ([say(USER, parts=parts(*["a"] * (MAX_MESSAGES + 1)))], ["messages[0].parts"]),
        ([say(USER, "a", tool_calls=[CALL])], ["messages[0].tool_calls"]),
        ([say(USER, "a", tool_call_id="c")], ["messages[0].tool_call_id"]),
        ([say(TOOL, "a", tool_call_id="c" * 129)], ["messages[0].tool_call_id"]),
        ([say(ASSISTANT, "a")], ["messages[0].role"]),
        ([say(9, "a"), say(USER, "b")], ["messages[0].role"]),
        ([say(ASSISTANT, tool_calls=[CALL] * (MAX_TOOLS + 1)), say(TOOL)], ["messages[0].tool_calls"]),
        (
            [say(ASSISTANT, tool_calls=[session_pb2.ToolCall(id="c" * 129, arguments="[]")]), say(TOOL)],
            [f"messages[0].tool_calls[0].{name}" for name in ("name", "id", "arguments")],
        ),
    ],
)
def test_a_message_that_cannot_be_is_refused_by_field(messages: list[session_pb2.Message], fields: list[str]) -> None:
    assert violations(lambda: messages_of(messages, "messages", ends_with_user=True)) == fields


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "1", '{"a": "\\ud800"}', "[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 5_000 + "}"],
    ids=lambda text: text[:12],
)
def test_json_that_is_no_object_is_refused_by_field(text: str) -> None:
    tool = session_pb2.Tool(name="a", parameters=text)
    for options, field in (
        (session_pb2.TemplateOptions(variables=text), "template_options.variables"),
        (session_pb2.TemplateOptions(tools=[tool]), "template_options.tools[0].parameters"),
    ):
        generate = asked(say(USER, "a"), template_options=options)
        create = pb.CreateSessionRequest(template_options=options)
        assert violations(partial(generation_of, generate, ANONYMOUS)) == [field]
        assert violations(partial(session_of, create, ANONYMOUS)) == [field]


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "strftime_now"])
def test_variables_of_the_server_are_refused(name: str) -> None:
    options = session_pb2.TemplateOptions(variables=f'{{"{name}": 1}}')
    request = pb.CreateSessionRequest(template_options=options)
    assert violations(lambda: session_of(request, ANONYMOUS)) == ["template_options.variables"]


def test_names_of_tools_have_a_length_and_tools_a_number() -> None:
    tools = [session_pb2.Tool(name=name) for name in ("", "a" * 129)]
    request = pb.CreateSessionRequest(template_options=session_pb2.TemplateOptions(tools=tools))
    assert violations(lambda: session_of(request, ANONYMOUS)) == [f"template_options.tools[{at}].name" for at in (0, 1)]
    many = session_pb2.TemplateOptions(tools=[session_pb2.Tool(name="a")] * (MAX_TOOLS + 1))
    request = pb.CreateSessionRequest(template_options=many)
    assert violations(lambda: session_of(request, ANONYMOUS)) == ["template_options.tools"]


def test_options_come_back_as_they_were_sent() -> None:
    said = session_pb2.TemplateOptions(
        tools=[
            session_pb2.Tool(name="a", description="", parameters='{"b": {}, "a": {}}'),
            session_pb2.Tool(name="b"),
        ],
        variables='{"x": 1}',
    )
    options = session_of(pb.CreateSessionRequest(template_options=said), ANONYMOUS).options
    assert options == TemplateOptions((Tool("a", "", '{"b": {}, "a": {}}'), Tool("b", None, "")), '{"x": 1}')
    assert options_message(options) == said
    assert options_message(TemplateOptions()) is None


def test_options_need_a_conversation() -> None:
    options = session_pb2.TemplateOptions(variables="{}")
    for request in (pb.GenerateRequest(text="a"), pb.GenerateRequest(tokens=pb.TokenList(token_ids=[1]))):
        request.template_options.CopyFrom(options)
        assert violations(partial(generation_of, request, ANONYMOUS)) == ["template_options"]
    tokenize = pb.TokenizeRequest(text="a", template_options=options)
    assert violations(lambda: tokenization_of(tokenize)) == ["template_options"]


def test_a_turn_answers_a_content_or_messages() -> None:
    said = message_of(pb.SendMessageRequest(messages=[say(TOOL, "a"), say(USER, "b")]), ANONYMOUS).said
    assert said == (Message("tool", "a"), Message("user", "b"))
    assert message_of(pb.SendMessageRequest(content="a"), ANONYMOUS).said == from_user("a")
    both = pb.SendMessageRequest(content="a", messages=[say(USER, "b")])
    assert violations(lambda: message_of(both, ANONYMOUS)) == ["content"]
    assert violations(lambda: message_of(pb.SendMessageRequest(), ANONYMOUS)) == ["content"]
