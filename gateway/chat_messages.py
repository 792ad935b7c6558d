"""Messages of chat completions: what callers send as a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from gateway.errors import ApiError
from gateway.fields import Fields, Refusal, Text
from slipstream.client import Message, ToolCall

ONLY_TEXT = "only text parts are supported"
PARSED = "accepted: OpenAI's packages write here what the JSON text beside it says, which alone counts"


class TextPart(Fields):
    """A part of a message's content."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        name: Refusal(ONLY_TEXT) for name in ("image_url", "input_audio", "file", "refusal", "video_url")
    }

    type: Literal["text"]
    text: Text


class CalledFunction(Fields):
    """The function of a call, with its arguments."""

    name: Text
    arguments: Text = ""
    parsed_arguments: dict[str, Any] | None = Field(None, description=PARSED)


class MessageToolCall(Fields):
    """A call of a tool in a message of the assistant."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {"custom": Refusal("only functions are supported")}

    id: Text = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Fields):
    """A message of the conversation."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "name": Refusal("chat templates have no names"),
        "function_call": Refusal("use tool_calls"),
        "refusal": Refusal("write it as content"),
        "annotations": Refusal("there is no search", ([],)),
        "audio": Refusal(ONLY_TEXT),
        "reasoning": Refusal("write it as content"),
        "reasoning_content": Refusal("write it as content"),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = Field(
        None, description="a text, or a list of parts of type `text`; may be null beside `tool_calls`"
    )
    tool_calls: list[MessageToolCall] | None = Field(
        None, description="with the role `assistant`: the calls that it made. `arguments` is the JSON text of an object"
    )
    parsed: dict[str, Any] | list[Any] | None = Field(None, description=PARSED)
    tool_call_id: Text | None = Field(None, description="with the role `tool`: the call that it is the result of")

    def message(self, field: str) -> Message:
        """Return the message as the client takes it. ApiError, which names ``field``, if it has no
        content."""
        if self.content is None and not self.tool_calls:
            raise ApiError(400, f"{field}.content must be a text, or a list of parts", param=f"{field}.content")
        calls = [ToolCall(call.function.name, call.function.arguments, call.id) for call in self.tool_calls or ()]
        role = "system" if self.role == "developer" else self.role
        return Message(role, text_of(self.content or ""), calls, self.tool_call_id or "")


def conversation_of(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return a conversation as the client takes it. ApiError if a message has no content."""
    return [message.message(f"messages[{index}]") for index, message in enumerate(messages)]


def text_of(content: str | list[TextPart]) -> str:
    """Return the text of a content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
