"""Writing an answer as items while it comes, token by token."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

from gateway.logprobs import chat_logprobs
from gateway.reading import Reading
from gateway.responses.ids import TurnId
from gateway.responses.output import Event, Output
from gateway.responses.resource import status_of
from slipstream.client import Delta, Result


class AnswerWriter:
    """Writes one answer. The events depend on its tokens alone, and not on how they come."""

    def __init__(self, turn: TurnId, reading: Reading, *, tells_logprobs: bool) -> None:
        self._output = Output(turn)
        self._reader = reading.reader()
        self._tells_logprobs = tells_logprobs

    @property
    def items(self) -> list[dict[str, Any]]:
        """The items that are complete."""
        return self._output.items

    @property
    def reasoning_token_count(self) -> int:
        """Number of tokens of reasoning."""
        return self._reader.reasoning_token_count

    def feed(self, delta: Delta) -> Iterator[Event]:
        """Add tokens. Yields events."""
        for piece in by_token(delta):
            logprobs = chat_logprobs(piece.logprobs)["content"] if self._tells_logprobs else []
            yield from self._output.feed(self._reader.feed(piece), logprobs)

    def end(self, result: Result) -> Iterator[Event]:
        """End the answer. Yields events."""
        yield from self._output.feed(self._reader.finish(), [])
        yield from self._output.end("completed" if status_of(result) == "completed" else "incomplete")

    def write(self, result: Result) -> None:
        """Add a whole answer, and end it."""
        whole = Delta(
            result.text,
            tuple(result.token_ids),
            logprobs=tuple(result.logprobs),
            token_text_byte_counts=tuple(result.token_text_byte_counts),
        )
        for events in (self.feed(whole), self.end(result)):
            for _ in events:
                pass


def by_token(delta: Delta) -> Iterator[Delta]:
    """Return a delta token by token, and then the text that no token made certain, which a turn's
    end may have. The delta as it is if it does not tell which text is a token's."""
    counts, encoded = delta.token_text_byte_counts, delta.text.encode()
    if not counts or len(counts) != len(delta.token_ids) or sum(counts) > len(encoded):
        yield delta
        return
    decoder, at = codecs.getincrementaldecoder("utf-8")(), 0  # a character in two parts is whole with the later token
    for index, count in enumerate(counts):
        yield Delta(
            decoder.decode(encoded[at : at + count]),
            delta.token_ids[index : index + 1],
            delta.token_offset + index,
            delta.logprobs[index : index + 1],
            token_text_byte_counts=(count,),
        )
        at += count
    if rest := decoder.decode(encoded[at:], final=True):
        yield Delta(rest, token_offset=delta.token_offset + len(counts))
