"""Errors in OpenAI's format, and the HTTP status of each gRPC status. All of them are made here."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match, Route

from slipstream.client import PeerError
from slipstream.errors import Code

log = logging.getLogger(__name__)

_KINDS: Mapping[Code, tuple[int, str]] = {
    Code.INVALID_ARGUMENT: (400, "invalid_request_error"),
    Code.OUT_OF_RANGE: (400, "invalid_request_error"),
    Code.FAILED_PRECONDITION: (400, "invalid_request_error"),
    Code.UNIMPLEMENTED: (400, "invalid_request_error"),
    Code.UNAUTHENTICATED: (401, "authentication_error"),
    Code.PERMISSION_DENIED: (403, "permission_error"),
    Code.NOT_FOUND: (404, "not_found_error"),
    Code.ALREADY_EXISTS: (409, "conflict_error"),
    Code.ABORTED: (409, "conflict_error"),
    Code.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    Code.CANCELLED: (499, "cancelled_error"),
    Code.UNAVAILABLE: (503, "unavailable_error"),
    Code.DEADLINE_EXCEEDED: (504, "timeout_error"),
}
"""HTTP status and OpenAI's type of an error, by gRPC's status. All others are 500."""

_CODES = {
    "CONTEXT_EXCEEDED": "context_length_exceeded",
    "PROMPT_TOO_LONG": "context_length_exceeded",
    "UNAUTHENTICATED": "invalid_api_key",
}
"""OpenAI's codes of errors for which it has one, by our reason. Others have our reason."""

_FIELDS: Sequence[tuple[str, str]] = (
    (r"^settings\.", ""),
    (r"^sampling\.", ""),
    (r"^max_token_count$", "max_tokens"),
    (r"^min_token_count$", "min_tokens"),
    (r"^stop_strings", "stop"),
    (r"^ignore_end_tokens$", "ignore_eos"),
    (r"^structure.*", "response_format"),
    (r"^logprobs.*", "logprobs"),
    (r"^speculation.*", "speculation"),
    (r"^prediction.*", "prediction"),
    (r"^choice_count$", "n"),
    (r"^task$", "metadata.task"),
    (r"^conversation$", "messages"),
    (r"^conversation\.messages", "messages"),
    (r"(\.tool_calls\[\d+\])\.(name|arguments)$", r"\1.function.\2"),
    (r"^template_options\.tools(\[\d+\])\.(name|parameters)$", r"tools\1.function.\2"),
    (r"^template_options\.tools", "tools"),
    (r"^template_options(\.variables)?$", "chat_template_kwargs"),
    (r"^(text|tokens)(\..*)?$", "prompt"),
    (r"^token_ids", "tokens"),
)
"""Patterns in the names of the contract's fields, and what takes their place in OpenAI's names."""


_SAME_NAMES: Mapping[str, str] = {}


class ErrorDetails(BaseModel):
    """An error, for the OpenAPI document."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of a response with an error, for the OpenAPI document."""

    error: ErrorDetails


class ApiError(Exception):
    """An error that a caller gets, in OpenAI's format."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(encodable(message))
        self.status = status
        self.kind = kind
        self.param = None if param is None else encodable(param)
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the body."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the response."""
        return JSONResponse(self.body(), self.status, self.headers)


def encodable(text: str) -> str:
    """Return a text that a body can hold: what callers wrote may have halves of surrogate pairs."""
    return text.encode(errors="replace").decode()


def openai_field(field: str) -> str:
    """Return OpenAI's name of a field of the contract."""
    for pattern, name in _FIELDS:
        field = re.sub(pattern, name, field)
    return field


def error_of_peer(error: PeerError, names: Mapping[str, str] = _SAME_NAMES) -> ApiError:
    """Return the error that a caller gets for an error of the orchestrator. ``names`` has the
    fields that the request calls otherwise than most."""

    def named(field: str) -> str:
        name = openai_field(field)
        rule = f"{name}.{error.metadata.get('rule', '')}"  # the part of a grammar that an error is about
        root = re.split(r"[.\[]", name)[0]
        return names.get(rule) or names.get(name) or names.get(root, root) + name[len(root) :]

    param = named(error.violations[0].field) if error.violations else None
    message = str(error)
    for violation in error.violations:
        told = f"{violation.field} {violation.description}"  # as messages have it, and no word within another
        message = message.replace(told, f"{named(violation.field)} {violation.description}")
    message = re.sub(r"\bROLE_([A-Z]+)\b", lambda role: role[1].lower(), message)
    return _told(error, message, param, _CODES.get(error.reason, error.reason.lower()))


def contract_error(error: PeerError) -> ApiError:
    """Return the error for a caller that speaks the contract: its own names of fields and
    reasons."""
    return _told(error, str(error), error.violations[0].field if error.violations else None, error.reason)


def _told(error: PeerError, message: str, param: str | None, code: str) -> ApiError:
    status, kind = _KINDS.get(error.code, (500, "server_error"))
    return ApiError(status, message, kind=kind, param=param, code=code, headers=_retry_headers(error))


def _retry_headers(error: PeerError) -> dict[str, str]:
    """Return when a retry can help. OpenAI's clients obey these headers."""
    if error.retry_after is None:
        return {"x-should-retry": "false"} if error.reason == "PRINCIPAL_LIMIT" else {}
    return {
        "retry-after": str(max(1, math.ceil(error.retry_after))),
        "retry-after-ms": str(max(1, math.ceil(error.retry_after * 1000))),
    }


def error_of_validation(problems: Sequence[Mapping[str, Any]], body: object) -> ApiError:
    """Return the error for a body that does not fit its model. It names one wrong field."""
    # Of several alternatives of a type, the one that fits farthest is what the caller meant.
    first = max(problems, key=lambda problem: (problem["type"] == "refused_field", len(problem["loc"])))
    if first["type"] == "json_invalid":
        return ApiError(
            400, f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}", code="bad_json"
        )
    param = _path(first, body)
    if not param:
        return ApiError(400, "the body must be a JSON object, with the header content-type: application/json")
    message = f"{param}: {first['msg']}" if first["type"] != "refused_field" else str(first["msg"])
    code = "unsupported_parameter" if first["type"] == "refused_field" else "invalid_value"
    return ApiError(400, message, param=param, code=code)


def _path(problem: Mapping[str, Any], body: object) -> str:
    """Return a field's path as callers write it: ``messages[0].content``. The end of a location
    that is not in the body, such as the name of an alternative's type, is left out."""
    if problem["loc"][0] in ("query", "path"):
        return str(problem["loc"][1])
    path, value = "", body
    for part in problem["loc"][1:]:
        if isinstance(part, int) and isinstance(value, list):
            path, value = f"{path}[{part}]", value[part] if part < len(value) else None
        elif isinstance(value, dict) and (part in value or problem["type"] == "missing"):
            path, value = f"{path}.{part}" if path else str(part), value.get(part)
    if problem["type"] == "refused_field":
        name = problem["ctx"]["field"]
        return f"{path}.{name}" if path else str(name)
    return path


def install_handlers(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Let the application answer every error but its own faults in OpenAI's format. ``routes`` are
    those of its endpoints."""

    async def api_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response()

    async def peer_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, PeerError)
        return error_of_peer(error).response()

    async def invalid_body(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_of_validation(error.errors(), error.body).response()

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path}: {error.detail}"
        headers = error.headers
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:  # Starlette names those of one route only
            headers = {"allow": ", ".join(sorted(_methods(request, routes)))}
        return ApiError(error.status_code, what, headers=headers).response()

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(PeerError, peer_error)
    app.add_exception_handler(RequestValidationError, invalid_body)
    app.add_exception_handler(HTTPException, http_error)


def _methods(request: Request, routes: Sequence[BaseRoute]) -> set[str]:
    """Return the methods that a request's path has."""
    fitting = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in fitting if isinstance(route, Route) for method in route.methods or ()}


def fault_error(error: BaseException) -> ApiError:
    """Return the error for a fault of the gateway's own, which tells a caller no details."""
    return ApiError(500, f"internal error of the gateway: {type(error).__name__}", kind="server_error")
