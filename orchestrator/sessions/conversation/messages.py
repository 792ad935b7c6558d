"""Messages of a conversation, and what a chat template reads besides them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_AROUND = 32
"""Characters that a template puts around a message, a tool or a call, about."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that an assistant's message made. ``arguments`` is the JSON text of an
    object, or empty."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation; its role is ``system``, ``user``, ``assistant`` or ``tool``."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    @property
    def length(self) -> int:
        """Length in characters, with about those that a template puts around it."""
        return self.own_length + _AROUND * (1 + len(self.tool_calls))

    @property
    def own_length(self) -> int:
        """Length in characters of what its author wrote."""
        calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in self.tool_calls)
        return len(self.content) + calls

    @property
    def as_template_reads(self) -> dict[str, Any]:
        """The message as chat templates expect it: OpenAI's form, but with a call's arguments as an
        object."""
        read: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            read["tool_calls"] = [
                {
                    **({"id": call.id} if call.id else {}),
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.loads(call.arguments or "{}")},
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id:
            read["tool_call_id"] = self.tool_call_id
        return read


def from_user(content: str) -> tuple[Message, ...]:
    """Return the single message of a user."""
    return (Message("user", content),)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call. ``parameters`` is the JSON text of a schema, or empty."""

    name: str
    description: str | None
    parameters: str

    @property
    def as_template_reads(self) -> dict[str, Any]:
        """The tool as chat templates expect it: OpenAI's form."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters:
            function["parameters"] = json.loads(self.parameters)
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """Tools and variables that a chat template reads. ``variables`` is the JSON text of an object,
    or empty."""

    tools: tuple[Tool, ...] = ()
    variables: str = ""

    @property
    def length(self) -> int:
        """Length in characters, with about those that a template puts around a tool."""
        tools = (len(tool.name) + len(tool.description or "") + len(tool.parameters) + _AROUND for tool in self.tools)
        return sum(tools) + len(self.variables)

    @property
    def as_template_reads(self) -> dict[str, Any]:
        """The variables of the template by name; ``tools`` is one of them, if there are any."""
        variables: dict[str, Any] = json.loads(self.variables or "{}")
        return {**variables, "tools": [tool.as_template_reads for tool in self.tools]} if self.tools else variables


NO_OPTIONS = TemplateOptions()
