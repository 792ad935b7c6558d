"""Messages of Anthropic's API: their blocks, and the messages that our contract makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from gateway.errors import ApiError
from gateway.fields import Fields, Refusal, Text
from slipstream.client import Message, ToolCall

_PREFIXES_ARE_FOUND = "accepted: the prefix cache needs no marks, so it changes nothing"
_ONLY_TEXT = "only blocks of the types text, thinking, tool_use and tool_result are, no images and no documents"


Name = Annotated[Text, Field(min_length=1, max_length=128)]
"""The name of a tool, or the id of a call."""


class CacheControl(Fields):
    """A mark for a cache of prompts."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Fields):
    """A block of a message's content."""

    cache_control: CacheControl | None = Field(None, description=_PREFIXES_ARE_FOUND)


class TextBlock(Block):
    """A text."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "citations": Refusal("nothing is cited", ([],)),
        "source": Refusal(_ONLY_TEXT),
        "data": Refusal(_ONLY_TEXT),
    }

    type: Literal["text"]
    text: Text


class ThinkingBlock(Fields):
    """Reasoning of an earlier answer. The chat template decides whether the model reads it."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text = Field("", description="accepted: reasoning is not signed")


class ToolUseBlock(Block):
    """A call of a tool in an earlier answer."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "caller": Refusal("only the model itself calls tools", ({"type": "direct"},)),
        "toolset_name": Refusal("there are no sets of tools"),
    }

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]


class ToolResultBlock(Block):
    """The result of a call."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {"toolset_name": Refusal("there are no sets of tools")}

    type: Literal["tool_result"]
    tool_use_id: Name
    content: Text | list[TextBlock] | None = Field(None, description="a text, or a list of blocks of type `text`")
    is_error: bool = Field(False, description="accepted: the model reads in the content what went wrong")


def _kind(block: object) -> str:
    """Return which kind of block a caller means, so that an error names a field of that kind."""
    if not isinstance(block, dict):
        return "a text"
    by_type = {"thinking": "thoughts", "tool_use": "a call", "tool_result": "a result"}
    by_field = {"thinking": "thoughts", "input": "a call", "tool_use_id": "a result"}
    named = next((kind for name, kind in by_field.items() if name in block), "a text")
    return by_type.get(str(block.get("type")), named)


AnyBlock = Annotated[
    Annotated[TextBlock, Tag("a text")]
    | Annotated[ThinkingBlock, Tag("thoughts")]
    | Annotated[ToolUseBlock, Tag("a call")]
    | Annotated[ToolResultBlock, Tag("a result")],
    Discriminator(_kind),
]


class InputMessage(Fields):
    """A message of the conversation."""

    role: Literal["user", "assistant"]
    content: Text | list[AnyBlock] = Field(
        description="a text, or a list of blocks: `text` and `tool_result` of a user, `text`, `thinking` and `tool_use` of "
        "the assistant"
    )

    def messages(self, field: str) -> Iterator[tuple[Message, str]]:
        """Yield the messages that our contract makes of this one, each with the field of its
        content. ApiError for a block of the other role. ``field`` is this message's own."""
        if isinstance(self.content, str):
            yield Message(self.role, self.content), f"{field}.content"
            return
        for index, block in enumerate(self.content):
            if block.type in _OF_THE_OTHER[self.role]:
                where = f"{field}.content[{index}].type"
                raise ApiError(400, f"{where} must not be {block.type} in a message of the {self.role}", param=where)
        if self.role == "assistant":
            yield self._of_assistant(self.content), f"{field}.content"
        else:
            yield from self._of_user(self.content, f"{field}.content")

    def _of_assistant(self, blocks: Sequence[AnyBlock]) -> Message:
        calls = [ToolCall(block.name, block.input, block.id) for block in blocks if isinstance(block, ToolUseBlock)]
        thought = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
        reasoning = f"<think>\n{thought}\n</think>\n\n" if thought else ""  # as the models write it
        return Message("assistant", reasoning + text_of(blocks), calls)

    def _of_user(self, blocks: Sequence[AnyBlock], field: str) -> Iterator[tuple[Message, str]]:
        has_result = False
        for index, block in enumerate(blocks):
            if isinstance(block, ToolResultBlock):
                content, has_result = block.content or "", True
                text = content if isinstance(content, str) else text_of(content)
                yield Message("tool", text, tool_call_id=block.tool_use_id), f"{field}[{index}].content"
        text = text_of(blocks)
        if text or not has_result:
            yield Message("user", text), field


_OF_THE_OTHER = {"user": ("thinking", "tool_use"), "assistant": ("tool_result",)}


def text_of(blocks: Sequence[AnyBlock]) -> str:
    """Return the text of a content."""
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))
