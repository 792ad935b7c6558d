"""Messages of conversations, tools, and what else a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.client.settings import refuse_text
from slipstream.v1 import orchestrator_pb2, session_pb2

_ROLES = {name.removeprefix("ROLE_").lower(): number for name, number in session_pb2.Role.items()}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool in a message of the assistant. ``arguments`` is the JSON text of an object,
    or a mapping."""

    name: str
    arguments: str | Mapping[str, Any] = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; ``role`` is "system", "user", "assistant" or "tool".

    ``tool_calls`` are for an assistant's message that the caller writes. An answer's calls stand in
    its text. ``tool_call_id`` says which call a tool's message is the result of.
    """

    role: str
    content: str
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""

    @classmethod
    def from_message(cls, message: session_pb2.Message) -> Message:
        """Convert a message."""
        role = session_pb2.Role.Name(message.role).removeprefix("ROLE_").lower()
        calls = tuple(ToolCall(call.name, call.arguments, call.id) for call in message.tool_calls)
        return cls(role, message.content, calls, message.tool_call_id)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call. ``parameters`` is a JSON Schema, as a mapping or as JSON
    text."""

    name: str
    description: str | None = None
    parameters: str | Mapping[str, Any] = ""


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """Tools and variables that a chat template reads. The text depends on them.

    ``variables`` are the template's own, such as ``{"enable_thinking": False}``, as a mapping or as
    JSON text. The server refuses what the template does not read.
    """

    tools: Sequence[Tool] = ()
    variables: str | Mapping[str, Any] = ""

    def message(self) -> session_pb2.TemplateOptions:
        """Convert to the contract's message."""
        refuse_text("tools", self.tools)
        tools = [
            session_pb2.Tool(name=tool.name, description=tool.description, parameters=_json_text(tool.parameters))
            for tool in self.tools
        ]
        return session_pb2.TemplateOptions(tools=tools, variables=_json_text(self.variables))


Said = Message | tuple[str, str]
"""A message, or its role and content."""


def conversation(messages: Sequence[Said]) -> orchestrator_pb2.MessageList:
    """Convert the messages of a conversation. The server refuses a role that does not exist."""
    return orchestrator_pb2.MessageList(messages=message_list(messages))


def message_list(messages: Sequence[Said]) -> list[session_pb2.Message]:
    """Convert messages, as `conversation` does."""
    refuse_text("messages", messages)
    return [_message(said, f"messages[{index}]") for index, said in enumerate(messages)]


def _message(said: Said, where: str) -> session_pb2.Message:
    if not isinstance(said, Message):
        refuse_text(where, said)
        role, content = said
        said = Message(role, content)
    calls = [
        session_pb2.ToolCall(id=call.id, name=call.name, arguments=_json_text(call.arguments))
        for call in said.tool_calls
    ]
    role_value = session_pb2.Role.ValueType(_ROLES.get(said.role, 0))
    return session_pb2.Message(role=role_value, content=said.content, tool_calls=calls, tool_call_id=said.tool_call_id)


def _json_text(value: str | Mapping[str, Any]) -> str:
    return value if isinstance(value, str) else json.dumps(value)
