"""The tools of a request, in the form that every chat endpoint makes of its own: what the chat
template gets, and the structure of an answer that must call one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import ApiError
from gateway.tool_formats.format import Function, ToolFormat
from slipstream.client import Structure, Tool

_ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
"""Keywords of JSON Schema that allow and refuse nothing."""
_MAX_FORCED_CHARACTERS = 2**20
"""Most characters of the schemas of which one is enforced. Each key takes the gateway's time."""
_BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
"""Keywords whose value has schemas by names."""
_DATA = {"const", "enum"}
"""Keywords whose value is data."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A function that a request offers to the model."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    """JSON Schema of its arguments; None if it has none."""
    field: str
    """Path of its parameters in the request, for errors."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, and what the answer may do with them."""

    offered: Sequence[OfferedTool] = ()
    """Tools that the model is told of."""
    forced: Sequence[OfferedTool] = ()
    """Tools of which the answer must call one. Empty: the model decides."""
    parallel: bool = True
    """False if the answer may have one call at most."""

    def template_tools(self) -> list[Tool]:
        """Return the tools for the chat template. ApiError if a schema has too many levels."""
        return [
            Tool(
                tool.name,
                tool.description,
                "" if tool.parameters is None else json_text(tool.parameters, tool.field),
            )
            for tool in self.offered
        ]

    def structure(self, tool_format: ToolFormat | None) -> Structure | None:
        """Return the structure of an answer that must call a tool; None if it need not. ApiError if
        that cannot be enforced."""
        if not self.forced:
            return None
        if tool_format is None:
            message = "tool_choice must be none or auto: this server has no format of calls (--tool-call-parser off)"
            raise ApiError(400, message, param="tool_choice")
        if sum(len(json_text(tool.parameters, tool.field)) for tool in self.forced) > _MAX_FORCED_CHARACTERS:
            message = (
                f"tools must have at most {_MAX_FORCED_CHARACTERS:,} characters of parameters if a call is required"
            )
            raise ApiError(400, message, param="tools")
        functions = [Function(tool.name, _arguments_schema(tool)) for tool in self.forced]
        return Structure(grammar=tool_format.grammar(functions, parallel=self.parallel))

    def error_names(self) -> dict[str, str]:
        """Return the request's names of the fields that errors about the structure name."""
        fields = {f"response_format.tool_{number}": tool.field for number, tool in enumerate(self.forced)}
        if len(self.forced) == 1:
            return {"response_format": self.forced[0].field, **fields}
        return {"response_format": "tools", **fields} if self.forced else {}


def _arguments_schema(tool: OfferedTool) -> str:
    """Return the schema that a call's arguments must follow, as JSON text. ApiError if they would
    not be an object."""
    if tool.parameters is None:
        return '{"type": "object", "additionalProperties": false}'
    if tool.parameters.get("type", "object") != "object":
        raise ApiError(400, f"{tool.field} must be the JSON Schema of an object", param=tool.field)
    try:
        bare = {"type": "object", **_bare(tool.parameters)}
    except RecursionError:
        raise _too_deep(tool.field) from None
    return json_text(bare, tool.field)


def variables_of(kwargs: Mapping[str, Any] | None) -> str:
    """Return ``chat_template_kwargs`` for the chat template. ApiError if they have too many
    levels."""
    return json_text(kwargs, "chat_template_kwargs") if kwargs else ""


def json_text(value: Any, field: str) -> str:
    """Return a value of a request as JSON text. ApiError, which names ``field``, if it has too many
    levels."""
    try:
        return json.dumps(value)
    except RecursionError:
        raise _too_deep(field) from None


def _too_deep(field: str) -> ApiError:
    return ApiError(400, f"{field} must have fewer levels", param=field)


def _bare(schema: Any) -> Any:
    """Return a schema without annotations, which are most of a tool's text."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _bare_value(key, value) for key, value in schema.items() if key not in _ANNOTATIONS}


def _bare_value(key: str, value: Any) -> Any:
    if key in _DATA:
        return value
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: _bare(schema) for name, schema in value.items()}
    return _bare(value)
