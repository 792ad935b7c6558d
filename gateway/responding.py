"""Answers become a response, whole or as a stream, whichever form an endpoint gives them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import JSONResponse, Response

from gateway.answers import Answers, unless_left
from gateway.gateway import gateway_of
from gateway.streaming import EventStream
from slipstream.client import Result

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "the answer, or with `stream` its chunks", "content": {"text/event-stream": {}}}
}
"""Responses of an endpoint that may stream, for the OpenAPI document."""


class Form(Protocol):
    """The form in which an endpoint writes answers."""

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the body of a response."""

    def chunks(self, answers: Answers) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream."""


async def respond(request: Request, answers: Answers, form: Form, *, stream: bool, is_marked: bool = True) -> Response:
    """Return the response. ApiError if the request is refused, or the caller leaves. The answers
    end with the response. ``is_marked`` is as in `EventStream`."""

    def end() -> None:
        gateway_of(request).run_later(answers.end())

    try:
        if not stream:
            response: Response = JSONResponse(form.whole(await unless_left(request, answers.complete())))
        else:
            await unless_left(request, answers.begin())  # a refusal has its own status
            return EventStream(form.chunks(answers), end, is_marked=is_marked)
    except BaseException:
        end()
        raise
    end()
    return response
