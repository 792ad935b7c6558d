"""A response, whole and as a stream of events.

Events are numbered from 0. Each token has its own events, so the numbers depend on the turn's
tokens alone: a stream can go on after any event, at any gateway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.answers import Answers
from gateway.errors import ApiError
from gateway.reading import Reading
from gateway.responses.ids import TurnId
from gateway.responses.output import Event
from gateway.responses.resource import AskedResponse, has_ended
from gateway.responses.writing import AnswerWriter
from slipstream.client import Result


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """Writes a response, whole and as events."""

    asked: AskedResponse
    reading: Reading
    first_number: int = 0
    """Number of the first event that a stream sends."""

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the body of a response whose turn has ended."""
        return self.ended(results[0], None)

    def ended(self, result: Result, error: ApiError | None) -> dict[str, Any]:
        """Return the body of a response whose turn has ended, with the error if it has failed."""
        writer = self._writer(result)
        writer.write(result)
        return self.asked.ended(_turn_of(result), result, writer.items, writer.reasoning_token_count, error)

    async def chunks(self, answers: Answers) -> AsyncIterator[Event]:
        """Yield the events of a stream."""
        number = 0
        async for event in self._events(answers):
            if number >= self.first_number:
                yield {"type": event["type"], "sequence_number": number, **event}
            number += 1

    async def _events(self, answers: Answers) -> AsyncIterator[Event]:
        result, error = answers.results[0], None
        turn, writer = _turn_of(result), self._writer(result)
        for kind in ("created", "in_progress"):
            yield {"type": f"response.{kind}", "response": self.asked.running(turn)}
        try:
            async for _, delta in answers.deltas():
                for event in writer.feed(delta):
                    yield event
        except ApiError as failure:
            if not has_ended(result):
                yield _lost(failure)
                return
            error = failure
        for event in writer.end(result):
            yield event
        body = self.asked.ended(turn, result, writer.items, writer.reasoning_token_count, error)
        kind = "incomplete" if body["status"] == "cancelled" else body["status"]  # there is no event for those
        yield {"type": f"response.{kind}", "response": body}

    def _writer(self, result: Result) -> AnswerWriter:
        tells_logprobs = self.asked.note.top_logprobs is not None
        return AnswerWriter(_turn_of(result), self.reading, tells_logprobs=tells_logprobs)


def _turn_of(result: Result) -> TurnId:
    return TurnId(result.session_id, result.turn)


def _lost(error: ApiError) -> Event:
    """Return the event of a stream that cannot go on although its turn may."""
    told = error.body()["error"]
    return {"type": "error", "error": told, "code": told["code"], "message": told["message"], "param": told["param"]}
