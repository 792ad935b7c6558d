"""Tools of chat completions, as OpenAI's requests have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from gateway.errors import ApiError
from gateway.fields import Fields, Refusal, Text
from gateway.tools import OfferedTool, ToolUse

MAX_TOOLS = 128
"""Most tools of a request, as OpenAI and our contract have it."""

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(Fields):
    """A function that the model may call."""

    name: FunctionName = Field(description="letters, digits, `_`, `-` and `.`, at most 64")
    description: Text | None = Field(None, description="what it does, for the model")
    parameters: dict[str, Any] | None = Field(None, description="the JSON Schema of an object; none: no arguments")
    strict: bool | None = Field(
        None, description="accepted: an enforced call always follows `parameters`, and any other may not"
    )


class ChatTool(Fields):
    """A tool of a request."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {"custom": Refusal("only functions are supported")}

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Fields):
    """The name of a tool."""

    name: str


class NamedTool(Fields):
    """A tool by its name."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {"custom": Refusal("only functions are supported")}

    type: Literal["function"]
    function: NamedFunction


class ToolSet(Fields):
    """A part of the tools."""

    mode: Literal["required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedTools(Fields):
    """The choice of some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: ToolSet


def _kind(choice: object) -> str:
    """Return which kind of choice a caller means, so that an error names a field of that kind."""
    if not isinstance(choice, dict):
        return "a word"
    return "a set" if "allowed_tools" in (choice.get("type"), *choice) else "a name"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a word")]
    | Annotated[NamedTool, Tag("a name")]
    | Annotated[AllowedTools, Tag("a set")],
    Discriminator(_kind),
]


def tool_use(tools: Sequence[ChatTool], choice: str | NamedTool | AllowedTools | None, *, parallel: bool) -> ToolUse:
    """Return the tools of a request, and what the answer may do with them. ApiError if the choice
    does not fit the tools."""
    offered: dict[str, OfferedTool] = {}
    for index, tool in enumerate(tools):
        function, field = tool.function, f"tools[{index}].function"
        if function.name in offered:
            message = f"{field}.name must differ from those of other tools, but is {function.name} again"
            raise ApiError(400, message, param=f"{field}.name")
        offered[function.name] = OfferedTool(
            function.name, function.description, function.parameters, f"{field}.parameters"
        )
    if choice == "none":
        return ToolUse()
    if choice is None or choice == "auto":
        return ToolUse(list(offered.values()), parallel=parallel)
    if not offered:
        raise ApiError(400, "tool_choice is only allowed with tools", param="tool_choice")
    return ToolUse(list(offered.values()), _forced(choice, offered), parallel)


def _forced(choice: str | NamedTool | AllowedTools, offered: Mapping[str, OfferedTool]) -> list[OfferedTool]:
    if isinstance(choice, str):
        return list(offered.values())
    named = {"tool_choice.function.name": choice} if isinstance(choice, NamedTool) else _allowed(choice)
    for field, tool in named.items():
        if tool.function.name not in offered:
            raise ApiError(400, f"{field} must be the name of a tool, but is {tool.function.name!r}", param=field)
    return [offered[name] for name in dict.fromkeys(tool.function.name for tool in named.values())]


def _allowed(choice: AllowedTools) -> dict[str, NamedTool]:
    tools = choice.allowed_tools.tools
    return {f"tool_choice.allowed_tools.tools[{index}].function.name": tool for index, tool in enumerate(tools)}
