"""A response, whole and as a stream of events.

Events are numbered from 0. Each token has its own event, so the numbers depend on the turn's tokens
alone: a stream can go on after any event, at any gateway.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.answers import Answers
from gateway.errors import ApiError
from gateway.logprobs import chat_logprobs
from gateway.responses.ids import TurnId
from gateway.responses.output import Event, Output
from gateway.responses.resource import AskedResponse, has_ended, status_of
from slipstream.client import Delta, Result


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """Writes a response, whole and as events."""

    asked: AskedResponse
    first_number: int = 0
    """Number of the first event that a stream sends."""

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the body of a response whose turn has ended."""
        return self.ended(results[0], None)

    def ended(self, result: Result, error: ApiError | None) -> dict[str, Any]:
        """Return the body of a response whose turn has ended, with the error if it has failed."""
        output = Output(_turn_of(result))
        for piece in (*output.text(result.text, self._logprobs(result)), *output.end(_item_status(result))):
            del piece  # only the items are asked for
        return self._body(result, output, error)

    async def chunks(self, answers: Answers) -> AsyncIterator[Event]:
        """Yield the events of a stream."""
        number = 0
        async for event in self._events(answers):
            if number >= self.first_number:
                yield {"type": event["type"], "sequence_number": number, **event}
            number += 1

    async def _events(self, answers: Answers) -> AsyncIterator[Event]:
        result = answers.results[0]
        turn, error = _turn_of(result), None
        output = Output(turn)
        for kind in ("created", "in_progress"):
            yield {"type": f"response.{kind}", "response": self.asked.body(turn, "in_progress")}
        try:
            async for _, delta in answers.deltas():
                for piece in by_token(delta):
                    for event in output.text(piece.text, self._logprobs(piece)):
                        yield event
        except ApiError as failure:
            if not has_ended(result):
                yield _lost(failure)
                return
            error = failure
        for event in output.end(_item_status(result)):
            yield event
        body = self._body(result, output, error)
        kind = "incomplete" if body["status"] == "cancelled" else body["status"]  # there is no event for those
        yield {"type": f"response.{kind}", "response": body}

    def _body(self, result: Result, output: Output, error: ApiError | None) -> dict[str, Any]:
        status = status_of(result) if error is None else "failed"
        return self.asked.body(_turn_of(result), status, output.items, result, error)

    def _logprobs(self, told: Delta | Result) -> list[dict[str, Any]]:
        if self.asked.note.top_logprobs is None:
            return []
        content: list[dict[str, Any]] = chat_logprobs(told.logprobs)["content"]
        return content


def by_token(delta: Delta) -> Iterator[Delta]:
    """Return a delta token by token. Text that no token made certain, at a turn's end, stays as it
    is."""
    counts = delta.token_text_byte_counts
    if len(counts) != len(delta.token_ids) or not counts:
        yield delta
        return
    encoded, at = delta.text.encode(), 0
    decoder = codecs.getincrementaldecoder("utf-8")()  # a character in two parts is whole with the later token
    for index, count in enumerate(counts):
        text = decoder.decode(encoded[at : at + count])
        at += count
        yield Delta(
            text,
            delta.token_ids[index : index + 1],
            delta.token_offset + index,
            delta.logprobs[index : index + 1],
            token_text_byte_counts=(count,),
        )


def _turn_of(result: Result) -> TurnId:
    return TurnId(result.session_id, result.turn)


def _item_status(result: Result) -> str:
    return "completed" if status_of(result) == "completed" else "incomplete"


def _lost(error: ApiError) -> Event:
    """Return the event of a stream that cannot go on although its turn may."""
    told = error.body()["error"]
    return {"type": "error", "error": told, "code": told["code"], "message": told["message"], "param": told["param"]}
