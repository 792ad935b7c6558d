"""Reading the answers to a chat by their parts, whole and while they come. What every chat endpoint
uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from gateway.answers import Answers, finish_reason
from gateway.parts import Call, CallArguments, CallStart, ContentReader, Part, PartReader, collected
from gateway.reasoning import ReasoningReader
from gateway.tool_formats.format import ToolFormat
from gateway.tools import ToolUse
from slipstream.client import Delta, Result, Structure

ReasoningParser = Literal["off", "deepseek_r1", "qwen3"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The way in which the answers to one request are read."""

    reasoning: ReasoningParser = "off"
    tool_format: ToolFormat | None = None
    """Format in which calls of tools are looked for; None: in none."""
    is_structured: bool = False
    """True if the text follows a structure. Then only ``<think>`` begins reasoning."""

    one_call: bool = False
    """True to leave out all calls but the first."""

    def of(self, tools: ToolUse, structure: Structure | None) -> Reading:
        """Return how the answers to one request are read."""
        return replace(
            self,
            tool_format=self.tool_format if tools.offered else None,
            is_structured=structure is not None,
            one_call=not tools.parallel,
        )

    @property
    def needs_origins(self) -> bool | None:
        """Return whether a turn must report token origins, which say how many bytes of text each
        token made: by them tokens of reasoning are counted. It changes no text."""
        return self.reasoning != "off" or None

    def reader(self) -> AnswerReader:
        """Return a reader for one answer."""
        then = ContentReader() if self.tool_format is None else self.tool_format.reader()
        if self.reasoning == "off":
            return AnswerReader(then, None, one_call=self.one_call)
        is_open = self.reasoning == "deepseek_r1" and not self.is_structured
        reasoning = ReasoningReader(then, is_open=is_open)
        return AnswerReader(reasoning, reasoning, one_call=self.one_call)

    def read(self, result: Result) -> ReadAnswer:
        """Return a whole answer by its parts. ApiError if another client has cancelled it."""
        reader = self.reader()
        text = Delta(result.text, tuple(result.token_ids), token_text_byte_counts=tuple(result.token_text_byte_counts))
        content, reasoning, calls = collected([*reader.feed(text), *reader.finish()])
        return ReadAnswer(content, reasoning, calls, reader.reasoning_token_count, reader.finish_reason(result))


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """A whole answer by its parts."""

    content: str
    reasoning: str
    calls: Sequence[Call]
    reasoning_token_count: int
    finish_reason: str | None
    """OpenAI's name for its end."""


class AnswerReader:
    """Reads one answer from its deltas, and counts its tokens of reasoning."""

    def __init__(self, reader: PartReader, reasoning: ReasoningReader | None, *, one_call: bool) -> None:
        self._reader = reader
        self._reasoning = reasoning
        self._one_call = one_call
        self._token_count = 0
        self._length = 0
        self._closed_count: int | None = None
        self._call_count = 0

    @property
    def reasoning_token_count(self) -> int:
        """Return the number of tokens up to the end of the reasoning; 0 without reasoning."""
        if self._reasoning is None or not self._reasoning.reasons:
            return 0
        return self._token_count if self._closed_count is None else self._closed_count

    def feed(self, delta: Delta) -> list[Part]:
        """Return the parts that a delta makes certain."""
        parts = self._kept(self._reader.feed(delta.text))
        if self._closed_count is None and self._reasoning is not None and self._reasoning.closed_at is not None:
            text = delta.text[: self._reasoning.closed_at - self._length]
            self._closed_count = self._token_count + _tokens_of(text, delta)
        self._token_count += len(delta.token_ids)
        self._length += len(delta.text)
        return parts

    def finish(self) -> list[Part]:
        """Return what was held back. The answer has ended."""
        return self._reader.finish()

    def finish_reason(self, result: Result) -> str | None:
        """Return OpenAI's name for the end of an answer; None while it runs. ApiError if another
        client has cancelled it."""
        reason = finish_reason(result)
        return "tool_calls" if self._call_count and reason == "stop" else reason

    def _kept(self, parts: Sequence[Part]) -> list[Part]:
        """Count the calls, and leave out those that the caller does not want."""
        kept: list[Part] = []
        for part in parts:
            self._call_count += isinstance(part, CallStart)
            if not (self._one_call and self._call_count > 1 and isinstance(part, CallStart | CallArguments)):
                kept.append(part)
        return kept


async def parts_of(
    answers: Answers, readers: Sequence[AnswerReader]
) -> AsyncIterator[tuple[int, Delta | None, list[Part]]]:
    """Iterate over the deltas, each with its answer's index and with its parts. An item without a
    delta has what a reader held back up to the end. ApiError if an answer fails."""
    async for index, delta in answers.deltas():
        yield index, delta, readers[index].feed(delta)
    for index, reader in enumerate(readers):
        if parts := reader.finish():
            yield index, None, parts


def _tokens_of(text: str, delta: Delta) -> int:
    """Return how many of a delta's tokens make its first ``text`` certain; all of them if that is
    not told."""
    wanted = len(text.encode())
    ends = list(accumulate(delta.token_text_byte_counts))
    if len(ends) != len(delta.token_ids):
        return len(delta.token_ids)
    return min(len(ends), sum(end < wanted for end in ends) + 1)
