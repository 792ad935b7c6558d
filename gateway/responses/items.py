"""Items of an input, and the messages that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from gateway.chat_messages import PARSED
from gateway.errors import ApiError
from gateway.fields import Fields, Refusal, Text
from gateway.responses.ids import TurnId
from gateway.responses.kinds import known_types
from slipstream.client import Message, ToolCall

_ONLY_TEXT = "only text parts are supported"
_IDENTITY = "accepted, as an answer's items have it; it changes nothing"

Status = Literal["in_progress", "completed", "incomplete"]


class InputPart(Fields):
    """A part of a message's content."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "annotations": Refusal("there is no search", ([],)),
        **{name: Refusal(_ONLY_TEXT) for name in ("image_url", "file_id", "file_data", "file_url", "filename")},
        **{name: Refusal(_ONLY_TEXT) for name in ("detail", "input_audio", "refusal")},
    }

    type: Literal["input_text", "output_text", "text"]
    text: Text
    logprobs: list[Any] | None = Field(None, description=_IDENTITY)
    parsed: dict[str, Any] | list[Any] | None = Field(None, description=PARSED)


class MessageItem(Fields):
    """A message of the input."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "phase": Refusal("chat templates have no phases"),
    }

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[InputPart] = Field(
        description="a text, or a list of parts of type `input_text` or `output_text`"
    )
    id: Text | None = Field(None, description=_IDENTITY)
    status: Status | None = Field(None, description=_IDENTITY)

    names: ClassVar[Mapping[str, str]] = {"role": ".role", "content": ".content"}
    """Names of the message's fields in the item."""

    def message(self) -> Message:
        """Return the message."""
        return Message("system" if self.role == "developer" else self.role, text_of(self.content))


class CallItem(Fields):
    """A call of a tool, which an earlier answer made."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "namespace": Refusal("tools have no namespaces"),
        "caller": Refusal("the model calls tools by itself"),
        "async": Refusal("the caller runs tools", (False,)),
    }

    type: Literal["function_call"]
    call_id: Text = Field(max_length=128)
    name: Text = Field(min_length=1, max_length=128)
    arguments: Text = Field(description="the JSON text of an object")
    parsed_arguments: dict[str, Any] | None = Field(None, description=PARSED)
    id: Text | None = Field(None, description=_IDENTITY)
    status: Status | None = Field(None, description=_IDENTITY)


class CallOutputItem(Fields):
    """The result of a call."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {"caller": Refusal("the model calls tools by itself")}

    type: Literal["function_call_output"]
    call_id: Text = Field(max_length=128)
    output: Text | list[InputPart] = Field(description="a text, or a list of parts of type `input_text`")
    id: Text | None = Field(None, description=_IDENTITY)
    status: Status | None = Field(None, description=_IDENTITY)
    names: ClassVar[Mapping[str, str]] = {"role": "", "content": ".output", "tool_call_id": ".call_id"}
    """Names of the message's fields in the item."""

    def message(self) -> Message:
        """Return the message."""
        return Message("tool", text_of(self.output), tool_call_id=self.call_id)


class ReasoningItem(Fields):
    """The reasoning of an earlier answer. It is left out, as most chat templates do themselves."""

    type: Literal["reasoning"]
    id: Text | None = Field(None, description=_IDENTITY)
    summary: list[Any] | None = Field(None, description="left out")
    content: list[Any] | None = Field(None, description="left out")
    encrypted_content: str | None = Field(None, description="left out")
    status: Status | None = Field(None, description=_IDENTITY)


def _kind_of(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return str(kind)


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind_of),
    known_types("message", "function_call", "function_call_output", "reasoning", default="message"),
]


def messages_of(given: str | Sequence[Item]) -> tuple[list[Message], dict[str, str]]:
    """Return the messages of an input, and the input's names of their fields. ApiError if there is
    none.

    Calls belong to the message of the assistant before them.
    """
    if isinstance(given, str):
        return [Message("user", given)], {"messages[0].content": "input"}
    messages: list[Message] = []
    names: dict[str, str] = {}
    called: Mapping[str, str]
    for index, item in enumerate(given):
        if isinstance(item, CallItem):
            if not messages or messages[-1].role != "assistant":
                messages.append(Message("assistant", ""))
            messages[-1], called = _with_call(messages[-1], item)
        elif isinstance(item, ReasoningItem):
            continue
        else:
            messages.append(item.message())
            called = item.names
        where = f"messages[{len(messages) - 1}]"
        names = {f"{where}.{name}": f"input[{index}]{field}" for name, field in called.items()} | names
    if not messages:
        raise ApiError(400, "input must have a message", param="input")
    return messages, names


def _with_call(message: Message, item: CallItem) -> tuple[Message, dict[str, str]]:
    """Return a message with one more call, and the item's names of its fields."""
    call = f"tool_calls[{len(message.tool_calls)}]"
    names = {"tool_calls": "", f"{call}.function.name": ".name", f"{call}.function.arguments": ".arguments"}
    calls = (*message.tool_calls, ToolCall(item.name, item.arguments, item.call_id))
    return replace(message, tool_calls=calls), {"content": "", **names}


def text_of(content: str | Sequence[InputPart]) -> str:
    """Return the text of a message's content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def input_items(messages: Sequence[Message], turn: TurnId) -> list[dict[str, Any]]:
    """Return the messages that a turn answers as items."""
    items: list[dict[str, Any]] = []
    for message in messages:
        for item in _items_of(message):
            name = f"{turn.item_id(_PREFIXES[item['type']], len(items))}_in"
            items.append({"id": name, "status": "completed", **item})
    return items


_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco"}


def _items_of(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}]
    items: list[dict[str, Any]] = []
    if message.content or not message.tool_calls:
        items.append({"type": "message", "role": message.role, "content": [_part(message)]})
    for call in message.tool_calls:
        told = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", **told})
    return items


def _part(message: Message) -> dict[str, Any]:
    if message.role == "assistant":
        return {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": message.content}
