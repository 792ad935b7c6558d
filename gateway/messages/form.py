"""Answers in the form of Anthropic's Messages API, whole and as events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.answers import Answers
from gateway.errors import ApiError
from gateway.gateway import Model
from gateway.messages.errors import error_body
from gateway.parts import CallArguments, CallStart, Content, Part, Reasoning
from gateway.reading import ReadAnswer, Reading, parts_of
from slipstream.client import Result

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@dataclass(frozen=True, slots=True)
class MessageForm:
    """Writes one answer in Anthropic's form."""

    model: Model
    id: str
    reading: Reading

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the body of a response."""
        (result,) = results
        read = self.reading.read(result)
        return {**self._message(usage_of(result, read.reasoning_token_count)), "content": _content(read)} | _end(
            read.finish_reason, result
        )

    async def chunks(self, answers: Answers) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream. An error is an event, and the last one."""
        try:
            async for event in self._events(answers):
                yield event
        except ApiError as error:
            yield error_body(error)

    async def _events(self, answers: Answers) -> AsyncIterator[dict[str, Any]]:
        reader, blocks = self.reading.reader(), _BlockWriter()
        await answers.wait_first()
        yield {"type": "message_start", "message": self._message(usage_of(answers.results[0], 0))}
        async for _, _, parts in parts_of(answers, [reader]):
            for part in parts:
                for event in blocks.events(part):
                    yield event
        for event in blocks.finish():
            yield event
        (result,) = answers.results
        usage = usage_of(result, reader.reasoning_token_count)
        yield {"type": "message_delta", "delta": _end(reader.finish_reason(result), result), "usage": usage}
        yield {"type": "message_stop"}

    def _message(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


class _BlockWriter:
    """Writes the parts of an answer as events of blocks: each kind of part has a block of its own,
    and so has each call."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: type[Part] | None = None

    def events(self, part: Part) -> Iterator[dict[str, Any]]:
        """Yield the events of a part."""
        match part:
            case Content(text):
                yield from self._open(Content, {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._open(Reasoning, {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallStart(name, call_id):
                yield from self.finish()
                yield from self._open(CallStart, {"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the last block, if there is one."""
        if self._kind is not None:
            yield {"type": "content_block_stop", "index": self._index}
        self._kind = None

    def _open(self, kind: type[Part], block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._kind is kind:
            return
        yield from self.finish()
        self._index += 1
        self._kind = kind
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _content(read: ReadAnswer) -> list[dict[str, Any]]:
    """Return the blocks of a whole answer."""
    blocks: list[dict[str, Any]] = []
    if read.reasoning:
        blocks.append({"type": "thinking", "thinking": read.reasoning, "signature": ""})
    if read.content:
        blocks.append({"type": "text", "text": read.content})
    return [*blocks, *(_call(call.call_id, call.name, call.arguments) for call in read.calls)]


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return the block of a call. Arguments that break off are a text: no tool can run on them."""
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {"type": "text", "text": arguments}
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def _end(reason: str | None, result: Result) -> dict[str, Any]:
    """Return why an answer ended."""
    if reason == "stop" and result.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": result.stop_string}
    return {"stop_reason": _STOP_REASONS.get(reason or ""), "stop_sequence": None}


def usage_of(result: Result, reasoning_token_count: int) -> dict[str, Any]:
    """Return the usage of an answer. Anthropic counts cached tokens beside ``input_tokens``."""
    return {
        "input_tokens": result.prompt_token_count - result.cached_token_count,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": result.cached_token_count,
        "output_tokens": result.generated_token_count,
        "output_tokens_details": {"thinking_tokens": reasoning_token_count},
    }
