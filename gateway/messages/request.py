"""Requests of Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway.chat_tools import MAX_TOOLS, FunctionName
from gateway.errors import ApiError
from gateway.fields import DO_NOT_COLLECT, NOT_STORED, TASK, Fields, Int32, Refusal, Text, draft_length, is_kept_out
from gateway.messages.blocks import CacheControl, InputMessage, TextBlock, text_of
from gateway.reading import Reading
from gateway.tools import OfferedTool, ToolUse, variables_of
from slipstream.client import Message, Settings, Structure, TemplateOptions

_ONE_SERVER = "this server has one model and one place"


class InputTool(Fields):
    """A function that the model may call."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "allowed_callers": Refusal("only the model itself calls tools", (["direct"],)),
        "defer_loading": Refusal("the model is told of all tools", (False,)),
        "input_examples": Refusal("write them into the description", ([],)),
    }

    type: Literal["custom"] = Field("custom", description="`custom`; Anthropic's own tools are not supported")
    name: FunctionName = Field(description="letters, digits, `_`, `-` and `.`, at most 64")
    description: Text | None = Field(None, description="what it does, for the model")
    input_schema: dict[str, Any] = Field(description="the JSON Schema of an object")
    strict: bool | None = Field(
        None, description="accepted: an enforced call always follows `input_schema`, and any other may not"
    )
    eager_input_streaming: bool | None = Field(None, description="accepted: arguments always come as they are written")
    cache_control: CacheControl | None = Field(None, description="accepted: the prefix cache needs no marks")


class ToolChoice(Fields):
    """A choice of what the answer does with the tools."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {"toolset_name": Refusal("there are no sets of tools")}

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="`auto`: the model decides. `any` or `tool`: the answer is a call, enforced with its arguments"
    )
    name: str | None = Field(None, description="with `tool`: the tool that is called")
    disable_parallel_tool_use: bool = Field(False, description="true: one call at most")


class Thinking(Fields):
    """Settings of the reasoning before the answer."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {"display": Refusal("reasoning is always shown", ("summarized",))}

    type: Literal["enabled", "adaptive", "disabled"] = Field(
        description="`enabled` and `adaptive` need a gateway with `--reasoning-parser`; the chat template decides"
    )
    budget_tokens: Int32 | None = Field(None, ge=1, description="accepted: `max_tokens` bounds reasoning too")


class OutputFormat(Fields):
    """The format of the answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    """Settings of the answer."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {"effort": Refusal("the chat template decides")}

    format: OutputFormat | None = Field(None, description="the answer always follows the schema")


class RequestMetadata(Fields):
    """Data about the request."""

    user_id: Text | None = Field(None, description="accepted; limits count by access token, so it changes nothing")
    task: Text | None = Field(None, description=f"ours; {TASK}")
    do_not_collect: Literal["true", "false"] | bool | None = Field(None, description=f"ours; {DO_NOT_COLLECT}")


class PromptFields(Fields):
    """Fields that make the prompt, which counting its tokens has too."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "prefill": Refusal("an answer always begins"),
        "speed": Refusal("there is one", ("standard",)),
        "mcp_servers": Refusal("call them yourself", ([],)),
        "context_management": Refusal("prompts are never cut: shorten it"),
    }

    model: Text = Field(description="the model's name, as `/v1/models` lists it")
    messages: list[InputMessage] = Field(min_length=1, description="text and tools only; the last one is the user's")
    system: Text | list[TextBlock] | None = Field(None, description="a text, or a list of blocks of type `text`")
    tools: list[InputTool] | None = Field(None, max_length=MAX_TOOLS, description="functions that the model may call")
    tool_choice: ToolChoice | None = Field(None, description="`auto` by default")
    thinking: Thinking | None = Field(None, description="by default the chat template decides")
    output_config: OutputConfig | None = Field(None, description="`format`: a JSON Schema that the answer follows")
    cache_control: CacheControl | None = Field(None, description="accepted: the prefix cache needs no marks")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="ours; variables of the chat template; one it does not read is refused"
    )

    def conversation(self) -> tuple[list[Message], dict[str, str]]:
        """Return the conversation as the client takes it, and this request's names of its fields.
        ApiError."""
        system = self.system if isinstance(self.system, str) else text_of(self.system or ())
        said = [(Message("system", system), "system")] if system else []
        for index, message in enumerate(self.messages):
            said += message.messages(f"messages[{index}]")
        names = {}
        for index, (_, field) in enumerate(said):
            names[f"messages[{index}].content"] = names[f"messages[{index}].tool_calls"] = field
            names[f"messages[{index}].role"] = f"{field.partition('.')[0]}.role"
        return [message for message, _ in said], names

    def tool_use(self) -> ToolUse:
        """Return the tools, and what the answer may do with them. ApiError if the choice does not
        fit the tools."""
        offered: dict[str, OfferedTool] = {}
        for index, tool in enumerate(self.tools or ()):
            if tool.name in offered:
                field = f"tools[{index}].name"
                raise ApiError(400, f"{field} must differ from those of other tools, but is {tool.name}", param=field)
            field = f"tools[{index}].input_schema"
            offered[tool.name] = OfferedTool(tool.name, tool.description, tool.input_schema, field)
        choice = self.tool_choice
        if choice is None or choice.type == "none":
            return ToolUse() if choice is not None else ToolUse(list(offered.values()))
        if (choice.type == "tool") != (choice.name is not None):
            message = "tool_choice.name must be set if, and only if, its type is tool"
            raise ApiError(400, message, param="tool_choice.name")
        if choice.name is not None and choice.name not in offered:
            message = f"tool_choice.name must be the name of a tool, but is {choice.name!r}"
            raise ApiError(400, message, param="tool_choice.name")
        if choice.type == "any" and not offered:
            raise ApiError(400, "tool_choice is only allowed with tools", param="tool_choice")
        forced = {"auto": [], "any": list(offered.values())}.get(choice.type)
        if forced is None:
            forced = [offered[choice.name or ""]]
        return ToolUse(list(offered.values()), forced, not choice.disable_parallel_tool_use)

    def tool_names(self) -> dict[str, str]:
        """Return this request's names of the fields of its tools."""
        return {
            f"tools[{index}].function.{field}": f"tools[{index}].{own}"
            for index in range(len(self.tools or ()))
            for field, own in (("name", "name"), ("parameters", "input_schema"))
        }

    def template_options(self, tools: ToolUse) -> TemplateOptions:
        """Return what the chat template reads besides the messages."""
        return TemplateOptions(tools.template_tools(), variables_of(self.chat_template_kwargs))

    def check(self, reading: Reading) -> None:
        """Refuse thinking that the gateway would not find: ApiError."""
        if self.thinking is not None and self.thinking.type != "disabled" and reading.reasoning == "off":
            message = "thinking.type must be disabled: this gateway runs without --reasoning-parser"
            raise ApiError(400, message, param="thinking.type")

    def structure(self, called: Structure | None) -> Structure | None:
        """Return the structure of the answer, ``called`` if it must call a tool. ApiError."""
        if self.output_config is None or self.output_config.format is None:
            return called
        if called is not None:
            raise ApiError(400, "a tool_choice that forces a call is not allowed with a format", param="tool_choice")
        return Structure(json_schema=json.dumps(self.output_config.format.schema_))


class CountRequest(PromptFields):
    """A request for the number of a prompt's tokens."""


class MessageRequest(PromptFields):
    """A request for an answer to a conversation."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        **PromptFields.REFUSED,
        "container": Refusal("there are no containers"),
        "diagnostics": Refusal("see the traces of rounds"),
        "inference_geo": Refusal(_ONE_SERVER),
        "store": NOT_STORED,
    }

    max_tokens: Int32 = Field(ge=1, description="most tokens of the answer")
    stream: bool = Field(False, description="send the answer as server-sent events while it is generated")
    stop_sequences: list[Text] | None = Field(
        None, description="up to 16 texts; the answer ends before the first of them"
    )
    temperature: float | None = Field(None, description="0 is greedy; by default the model's own, not 1")
    top_p: float | None = Field(None, description="keep the likeliest tokens up to this probability")
    top_k: Int32 | None = Field(None, ge=0, description="keep so many of the likeliest tokens; 0: all")
    metadata: RequestMetadata | None = Field(
        None, description="`do_not_collect`, `task`, and `user_id`, which changes nothing"
    )
    service_tier: Literal["auto", "standard_only"] | None = Field(
        None, description="accepted: all requests of a caller have the same priority"
    )
    seed: int | None = Field(None, ge=0, le=2**63 - 1, description="ours; the same seed gives the same text")
    speculation: Literal["off", "on"] | Annotated[Int32, Field(ge=1)] | None = Field(
        None, description='ours: "off", "on", or a number of draft tokens. It changes the speed, never the text'
    )

    def settings(self, structure: Structure | None, reading: Reading) -> Settings:
        """Return the settings of the turn."""
        metadata = self.metadata or RequestMetadata()
        return Settings(
            max_token_count=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop_strings=self.stop_sequences or (),
            structure=structure,
            token_origins=reading.needs_origins,
            draft_length=draft_length(self.speculation),
            task=metadata.task,
            do_not_collect=is_kept_out(metadata.model_dump()) or None,
        )
