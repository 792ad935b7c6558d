"""Responses and their events as two specifications have them, OpenAI's package and Open Responses',
and as our OpenAPI document has them. Every answer that a test reads is checked against all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import openai.types.responses as of_openai
from openresponses_types import types as of_open_responses
from pydantic import BaseModel, TypeAdapter

from gateway.responses.bodies import ResponseEvent, ResponseObject

_OPENAI_EVENT: TypeAdapter[Any] = TypeAdapter(of_openai.ResponseStreamEvent)

_OPEN_EVENTS: dict[str, type[BaseModel]] = {
    "created": of_open_responses.ResponseCreatedStreamingEvent,
    "in_progress": of_open_responses.ResponseInProgressStreamingEvent,
    "completed": of_open_responses.ResponseCompletedStreamingEvent,
    "incomplete": of_open_responses.ResponseIncompleteStreamingEvent,
    "failed": of_open_responses.ResponseFailedStreamingEvent,
    "output_item.added": of_open_responses.ResponseOutputItemAddedStreamingEvent,
    "output_item.done": of_open_responses.ResponseOutputItemDoneStreamingEvent,
    "content_part.added": of_open_responses.ResponseContentPartAddedStreamingEvent,
    "content_part.done": of_open_responses.ResponseContentPartDoneStreamingEvent,
    "output_text.delta": of_open_responses.ResponseOutputTextDeltaStreamingEvent,
    "output_text.done": of_open_responses.ResponseOutputTextDoneStreamingEvent,
    "function_call_arguments.delta": of_open_responses.ResponseFunctionCallArgumentsDeltaStreamingEvent,
    "function_call_arguments.done": of_open_responses.ResponseFunctionCallArgumentsDoneStreamingEvent,
}


def check_response(response: BaseModel) -> None:
    """Refuse a response that does not fit."""
    body = response.model_dump(mode="json", by_alias=True, exclude_unset=True)
    of_openai.Response.model_validate(body, strict=True)
    ResponseObject.model_validate(body, extra="forbid")
    of_open_responses.ResponseResource.model_validate(_open(body))


def check_events(events: Iterable[Any]) -> None:
    """Refuse events that do not fit, or that are not numbered from 0."""
    for number, event in enumerate(events):
        body = event.model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert body["sequence_number"] == number
        _OPENAI_EVENT.validate_python(body, strict=True)
        ResponseEvent.model_validate(body, extra="forbid")
        kind = body["type"].removeprefix("response.")
        if "response" in body:
            check_response(event.response)
            body = {**body, "response": _open(body["response"])}
        if kind in _OPEN_EVENTS:
            _OPEN_EVENTS[kind].model_validate(body)


def _open(body: dict[str, Any]) -> dict[str, Any]:
    """Return a response as Open Responses' models take it: they want a schema to be null, where
    OpenAI's want the schema, and whole seconds, which OpenAI's package turns into fractions."""
    times = {name: None if body[name] is None else int(body[name]) for name in ("created_at", "completed_at")}
    form = body["text"]["format"]
    text = {**body["text"], "format": {**form, "schema": None} if "schema" in form else form}
    return {**body, **times, "text": text}
