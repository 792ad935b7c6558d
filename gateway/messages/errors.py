"""Errors in Anthropic's format."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response

from gateway.errors import ApiError, error_of_peer, error_of_validation
from gateway.exchange import current
from slipstream.client import PeerError

NAMES = {"stop": "stop_sequences", "prompt": "messages", "response_format": "output_config.format"}
"""Names of fields that other endpoints call otherwise."""

_KINDS = {413: "request_too_large", 500: "api_error", 503: "overloaded_error", 504: "timeout_error"}
"""Anthropic's type of an error by its status. The others have OpenAI's, which are the same."""


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of an error. ``param`` and ``code`` are ours, as in OpenAI's format."""
    kind = _KINDS.get(error.status, error.kind)
    details = {"type": kind, "message": str(error), "param": error.param, "code": error.code}
    return {"type": "error", "error": details, "request_id": current().request_id}


class MessagesRoute(APIRoute):
    """A route whose errors are in Anthropic's format."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except RequestValidationError as invalid:
                error = error_of_validation(invalid.errors(), invalid.body)
            except PeerError as refused:
                error = error_of_peer(refused, NAMES)
            except ApiError as told:
                error = told
            return JSONResponse(error_body(error), error.status, error.headers)

        return handle
