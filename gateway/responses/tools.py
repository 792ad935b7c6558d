"""Tools of a response's request, which are flatter than those of chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from gateway.chat_tools import MAX_TOOLS, FunctionName
from gateway.errors import ApiError
from gateway.fields import Fields, Refusal, Text
from gateway.responses.kinds import known_types
from gateway.responses.resource import ToldTool
from gateway.tools import OfferedTool, ToolUse


class FunctionTool(Fields):
    """A function that the model may call."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "async": Refusal("the caller runs functions", (False,)),
        "defer_loading": Refusal("there is no search for tools", (False,)),
        "allowed_callers": Refusal("the model calls functions by itself", (["direct"],)),
        "output_schema": Refusal("describe the output in the description"),
    }

    type: Literal["function"]
    name: FunctionName = Field(description="letters, digits, `_`, `-` and `.`, at most 64")
    description: Text | None = Field(None, description="what it does, for the model")
    parameters: dict[str, Any] | None = Field(None, description="the JSON Schema of an object; none: no arguments")
    strict: bool | None = Field(
        None, description="accepted: an enforced call always follows `parameters`, and any other may not"
    )


class ChosenFunction(Fields):
    """A tool by its name."""

    type: Literal["function"]
    name: str


class AllowedFunctions(Fields):
    """The choice of some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["required"]
    tools: list[ChosenFunction] = Field(min_length=1, max_length=MAX_TOOLS)


def _kind(choice: object) -> str:
    """Return which kind of choice a caller means, so that an error names a field of that kind."""
    if not isinstance(choice, dict):
        return "a word"
    return "a set" if choice.get("type") == "allowed_tools" else "a name"


Choice = Literal["none", "auto", "required"] | ChosenFunction | AllowedFunctions
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a word")]
    | Annotated[ChosenFunction, Tag("a name")]
    | Annotated[AllowedFunctions, Tag("a set")],
    Discriminator(_kind),
    known_types("function", "allowed_tools"),
]


def tool_use(tools: Sequence[FunctionTool], choice: Choice | None, *, parallel: bool) -> ToolUse:
    """Return the tools of a request, and what the answer may do with them. ApiError if the choice
    does not fit the tools."""
    offered: dict[str, OfferedTool] = {}
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        if tool.name in offered:
            message = f"{field}.name must differ from those of other tools, but is {tool.name} again"
            raise ApiError(400, message, param=f"{field}.name")
        offered[tool.name] = OfferedTool(tool.name, tool.description, tool.parameters, f"{field}.parameters")
    if choice == "none":
        return ToolUse()
    if choice is None or choice == "auto":
        return ToolUse(list(offered.values()), parallel=parallel)
    if not offered:
        raise ApiError(400, "tool_choice is only allowed with tools", param="tool_choice")
    return ToolUse(list(offered.values()), _forced(choice, offered), parallel)


def _forced(choice: Choice, offered: Mapping[str, OfferedTool]) -> list[OfferedTool]:
    if isinstance(choice, str):
        return list(offered.values())
    named = {"tool_choice.name": choice.name} if isinstance(choice, ChosenFunction) else _allowed(choice)
    for field, name in named.items():
        if name not in offered:
            raise ApiError(400, f"{field} must be the name of a tool, but is {name!r}", param=field)
    return [offered[name] for name in dict.fromkeys(named.values())]


def _allowed(choice: AllowedFunctions) -> dict[str, str]:
    return {f"tool_choice.tools[{index}].name": tool.name for index, tool in enumerate(choice.tools)}


def told_tools(tools: ToolUse) -> list[ToldTool]:
    """Return the tools as a response tells them."""
    return [
        ToldTool(tool.name, tool.description, "" if tool.parameters is None else json.dumps(tool.parameters))
        for tool in tools.offered
    ]
