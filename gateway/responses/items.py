"""Input items: what they become as messages, and messages as items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from gateway.errors import ApiError
from gateway.fields import Fields, Refusal, Text

_ONLY_TEXT = "only text parts are supported"

Pair = tuple[str, str]
"""Role and text of a message."""


class InputPart(Fields):
    """A part of a message's content."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "annotations": Refusal("there is no search", ([],)),
        "logprobs": Refusal("nothing is computed from them", ([],)),
        **{name: Refusal(_ONLY_TEXT) for name in ("image_url", "file_id", "file_data", "file_url", "filename")},
        **{name: Refusal(_ONLY_TEXT) for name in ("detail", "input_audio", "refusal")},
    }

    type: Literal["input_text", "output_text", "text"]
    text: Text


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
    id: Text | None = Field(None, description="accepted, as an answer's items have it; it changes nothing")
    status: Literal["in_progress", "completed", "incomplete"] | None = Field(
        None, description="accepted, as an answer's items have it; it changes nothing"
    )

    def pair(self) -> Pair:
        """Return role and text, as the client takes them."""
        role = "system" if self.role == "developer" else self.role
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return role, text


Input = Text | list[MessageItem]


def pairs_of(given: Input) -> list[Pair]:
    """Return the messages of an input. ApiError if there is none."""
    if isinstance(given, str):
        return [("user", given)]
    if not given:
        raise ApiError(400, "input must have an item", param="input")
    return [item.pair() for item in given]


def message_items(pairs: Sequence[Pair], prefix: str) -> list[dict[str, Any]]:
    """Return messages as items. ``prefix`` begins the id of each."""
    return [
        {
            "type": "message",
            "id": f"{prefix}_{index}",
            "role": role,
            "status": "completed",
            "content": [_part(role, text)],
        }
        for index, (role, text) in enumerate(pairs)
    ]


def _part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}
