"""The object that a response is over HTTP, from what the orchestrator keeps of its turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import ApiError
from gateway.gateway import Model
from gateway.responses.ids import TurnId, conversation_id
from gateway.responses.note import Note
from gateway.usage import metrics_of
from slipstream.client import Result

_STATUSES = {
    "END_TOKEN": "completed",
    "STOP_STRING": "completed",
    "STOP_TOKEN": "completed",
    "MAX_TOKENS": "incomplete",
    "CONTEXT_LENGTH": "incomplete",
    "CANCELLED": "cancelled",
}


@dataclass(frozen=True, slots=True)
class ToldSettings:
    """The settings that a response tells. The model's own take the place of those that are None."""

    temperature: float | None
    top_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    max_output_tokens: int | None
    json_schema: str | None


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """A response as it was asked for."""

    note: Note
    settings: ToldSettings
    instructions: str | None
    model: Model
    """The model that is served, for what the request left to it."""

    def body(
        self,
        turn: TurnId,
        status: str,
        output: Sequence[dict[str, Any]] = (),
        result: Result | None = None,
        error: ApiError | None = None,
    ) -> dict[str, Any]:
        """Return the response. ``result`` is that of a turn that has ended, and ``error`` tells why
        it failed."""
        note, settings = self.note, self.settings
        is_incomplete = status == "incomplete"
        return {
            "id": turn.response_id,
            "object": "response",
            "created_at": note.created,
            "completed_at": round(note.created + result.total_time) if result and status == "completed" else None,
            "status": status,
            "background": note.background,
            "error": None if error is None else {"code": _error_code(error), "message": str(error)},
            "incomplete_details": {"reason": "max_output_tokens"} if is_incomplete else None,
            "instructions": self.instructions,
            "max_output_tokens": settings.max_output_tokens,
            "max_tool_calls": None,
            "model": note.model,
            "output": list(output),
            "parallel_tool_calls": True,
            "previous_response_id": note.previous_response_id,
            "conversation": {"id": conversation_id(turn.session_id)} if note.in_conversation else None,
            "prompt_cache_key": None,
            "reasoning": None,
            "safety_identifier": None,
            "service_tier": "default",
            "store": note.store,
            "temperature": _short(settings.temperature, self.model.temperature),
            "text": {"format": self._format()},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": note.top_logprobs or 0,
            "top_p": _short(settings.top_p, self.model.top_p),
            "presence_penalty": _short(settings.presence_penalty, 0.0),
            "frequency_penalty": _short(settings.frequency_penalty, 0.0),
            "truncation": "disabled",
            "usage": None if result is None else _usage(result),
            "user": note.user,
            "metadata": note.metadata,
            **({} if result is None else metrics_of([result])),
        }

    def _format(self) -> dict[str, Any]:
        told = self.note.text_format
        if told["type"] != "json_schema":
            return told
        return {**told, "schema": json.loads(self.settings.json_schema or "{}")}


def status_of(result: Result) -> str:
    """Return the status of a response whose turn has not failed."""
    return _STATUSES[result.finish_reason] if result.finish_reason else "in_progress"


def has_ended(result: Result) -> bool:
    """Return whether a turn has ended, though it may have failed."""
    return bool(result.weights_fingerprint)


def _usage(result: Result) -> dict[str, Any]:
    return {
        "input_tokens": result.prompt_token_count,
        "input_tokens_details": {"cached_tokens": result.cached_token_count, "cache_write_tokens": 0},
        "output_tokens": result.generated_token_count,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": result.prompt_token_count + result.generated_token_count,
    }


def _error_code(error: ApiError) -> str:
    """Return the code of a response's error, of which OpenAI has few."""
    if error.status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if error.status < 500 else "server_error"


def _short(value: float | None, default: float) -> float:
    """Return a number as it was written: the orchestrator keeps 32 bits of it."""
    return float(f"{default if value is None else value:.7g}")
