"""Parts of an answer in OpenAI's form of chat completions."""

from __future__ import annotations

from typing import Any

from gateway.parts import CallArguments, CallStart, Content, Part, Reasoning
from gateway.reading import ReadAnswer


def message_of(read: ReadAnswer) -> dict[str, Any]:
    """Return a whole answer as a message."""
    message: dict[str, Any] = {"role": "assistant", "content": read.content, "refusal": None}
    if read.reasoning:
        message["reasoning_content"] = read.reasoning
    if read.calls:
        message["content"] = read.content or None
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in read.calls
        ]
    return message


class PartWriter:
    """Writes the parts of one answer as the deltas of a stream."""

    def __init__(self) -> None:
        self._call_count = 0

    def delta(self, part: Part) -> dict[str, Any]:
        """Return a part's delta."""
        match part:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallStart(name, call_id):
                self._call_count += 1
                told = {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
                return self._call(told)
            case CallArguments(text):
                return self._call({"function": {"arguments": text}})

    def _call(self, told: dict[str, Any]) -> dict[str, Any]:
        return {"tool_calls": [{"index": self._call_count - 1, **told}]}
