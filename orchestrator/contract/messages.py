"""Conversions of messages, tools and other input of chat templates, both ways. InvalidFieldsError
for those without a meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from orchestrator.contract.fields import given, meaning
from orchestrator.sessions.conversation.messages import NO_OPTIONS, Message, TemplateOptions, Tool, ToolCall
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.v1 import session_pb2

ROLES = {
    session_pb2.ROLE_SYSTEM: "system",
    session_pb2.ROLE_USER: "user",
    session_pb2.ROLE_ASSISTANT: "assistant",
    session_pb2.ROLE_TOOL: "tool",
}
_ROLE_VALUES = {name: value for value, name in ROLES.items()}

MAX_MESSAGES = 4096
"""Most messages of a request, and parts of a message. More would take long to read, and no context
holds them."""

MAX_TOOLS, MAX_NAME = 128, 128
"""Most tools of a request, and calls of a message; and most characters of their names and ids."""

_SERVERS_OWN = ("messages", "tools", "add_generation_prompt", "strftime_now")
"""Variables of chat templates that other fields set, or the server."""


def messages_of(said: Sequence[session_pb2.Message], where: str, *, ends_with_user: bool) -> tuple[Message, ...]:
    """Convert messages, of which there is at least one. ``where`` is their field, for errors.

    InvalidFieldsError, also if they must end with a user's or a tool's and do not.
    """
    if len(said) > MAX_MESSAGES:
        raise InvalidFieldsError([FieldViolation(where, f"may be at most {MAX_MESSAGES}, but are {len(said)}")])
    messages: list[Message] = []
    violations: list[FieldViolation] = []
    for index, message in enumerate(said):
        try:
            messages.append(_message_of(message, f"{where}[{index}]"))
        except InvalidFieldsError as error:
            violations += error.violations
    last = said[-1].role
    if ends_with_user and last in ROLES and ROLES[last] not in ("user", "tool"):
        what = f"must be ROLE_USER or ROLE_TOOL in the last message, but is {session_pb2.Role.Name(last)}"
        violations.append(FieldViolation(f"{where}[{len(said) - 1}].role", what))
    if violations:
        raise InvalidFieldsError(violations)
    return tuple(messages)


def _message_of(message: session_pb2.Message, where: str) -> Message:
    try:
        role, violations = meaning(message.role, ROLES, session_pb2.Role, f"{where}.role", required=True) or "", []
    except InvalidFieldsError as error:
        role, violations = "", list(error.violations)
    violations += _violations_of(message, role, where)
    if violations:
        raise InvalidFieldsError(violations)
    content = message.content or "".join(part.text for part in message.parts)
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls)
    return Message(role, content, calls, message.tool_call_id)


def _violations_of(message: session_pb2.Message, role: str, where: str) -> Iterator[FieldViolation]:
    parts, calls = message.parts, message.tool_calls
    if not (message.content or any(part.text for part in parts) or calls or role == "tool"):
        yield FieldViolation(f"{where}.content", "must not be empty")
    if parts and message.content:
        yield FieldViolation(f"{where}.parts", "must not be set together with content")
    if len(parts) > MAX_MESSAGES:
        yield FieldViolation(f"{where}.parts", f"may be at most {MAX_MESSAGES}, but are {len(parts)}")
    for index, part in enumerate(parts[:MAX_MESSAGES]):
        if part.WhichOneof("part") is None:
            yield FieldViolation(f"{where}.parts[{index}]", "must be a text: other kinds are not supported")
    if calls and role != "assistant":
        yield FieldViolation(f"{where}.tool_calls", "must only be set with ROLE_ASSISTANT")
    if len(calls) > MAX_TOOLS:
        yield FieldViolation(f"{where}.tool_calls", f"may be at most {MAX_TOOLS}, but are {len(calls)}")
    for index, call in enumerate(calls[:MAX_TOOLS]):
        yield from _of_name(call.name, f"{where}.tool_calls[{index}].name")
        yield from _of_id(call.id, f"{where}.tool_calls[{index}].id")
        yield from _of_object(call.arguments, f"{where}.tool_calls[{index}].arguments")
    if message.tool_call_id and role != "tool":
        yield FieldViolation(f"{where}.tool_call_id", "must only be set with ROLE_TOOL")
    yield from _of_id(message.tool_call_id, f"{where}.tool_call_id")


def options_of(options: session_pb2.TemplateOptions) -> TemplateOptions:
    """Convert what a chat template reads besides the messages. InvalidFieldsError."""
    tools = options.tools
    violations: list[FieldViolation] = []
    if len(tools) > MAX_TOOLS:
        violations.append(FieldViolation("template_options.tools", f"may be at most {MAX_TOOLS}, but are {len(tools)}"))
    for index, tool in enumerate(tools[:MAX_TOOLS]):
        violations += _of_name(tool.name, f"template_options.tools[{index}].name")
        violations += _of_object(tool.parameters, f"template_options.tools[{index}].parameters")
    violations += _of_object(options.variables, "template_options.variables", _SERVERS_OWN)
    if violations:
        raise InvalidFieldsError(violations)
    converted = (Tool(tool.name, given(tool, "description"), tool.parameters) for tool in tools)
    return TemplateOptions(tuple(converted), options.variables)


def _of_name(name: str, where: str) -> Iterator[FieldViolation]:
    if not 1 <= len(name) <= MAX_NAME:
        yield FieldViolation(where, f"must have from 1 to {MAX_NAME} characters, but has {len(name)}")


def _of_id(name: str, where: str) -> Iterator[FieldViolation]:
    if len(name) > MAX_NAME:
        yield FieldViolation(where, f"must have at most {MAX_NAME} characters, but has {len(name)}")


def _of_object(text: str, where: str, reserved: Sequence[str] = ()) -> Iterator[FieldViolation]:
    """Yield the violations of the JSON text of an object without the names ``reserved``."""
    if not text:
        return
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # a JSON text may hold half a surrogate pair
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]
        yield FieldViolation(where, f"must be the JSON text of an object: {why}")
        return
    if not isinstance(value, dict):
        yield FieldViolation(where, "must be the JSON text of an object")
        return
    for name in reserved:
        if name in value:
            yield FieldViolation(where, f"must not have {name}: the server sets it")


def message_message(message: Message) -> session_pb2.Message:
    """Convert a message of a conversation for a caller."""
    return session_pb2.Message(
        role=_ROLE_VALUES[message.role],
        content=message.content,
        tool_calls=[
            session_pb2.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.tool_calls
        ],
        tool_call_id=message.tool_call_id,
    )


def options_message(options: TemplateOptions) -> session_pb2.TemplateOptions | None:
    """Convert what a chat template reads besides the messages for a caller. None if it is
    nothing."""
    if options == NO_OPTIONS:
        return None
    tools = [
        session_pb2.Tool(name=tool.name, description=tool.description, parameters=tool.parameters)
        for tool in options.tools
    ]
    return session_pb2.TemplateOptions(tools=tools, variables=options.variables)
