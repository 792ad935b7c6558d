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
class ToldTool:
    """A tool that a response tells. ``parameters`` is a schema as JSON text, or empty."""

    name: str
    description: str | None
    parameters: str

    def told(self, *, strict: bool) -> dict[str, Any]:
        """Return the tool."""
        parameters = json.loads(self.parameters) if self.parameters else None
        told = {"name": self.name, "description": self.description, "parameters": parameters, "strict": strict}
        return {"type": "function", **told}


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """A response as it was asked for."""

    note: Note
    settings: ToldSettings
    instructions: str | None
    tools: Sequence[ToldTool]
    model: Model
    """The model that is served, for what the request left to it."""

    def running(self, turn: TurnId) -> dict[str, Any]:
        """Return the response while its turn runs."""
        return self._body(turn, "in_progress")

    def ended(
        self,
        turn: TurnId,
        result: Result,
        output: Sequence[dict[str, Any]],
        reasoning_token_count: int,
        error: ApiError | None,
    ) -> dict[str, Any]:
        """Return the response whose turn has ended, with the error if it has failed."""
        status = status_of(result) if error is None else "failed"
        told: dict[str, Any] = {
            "output": list(output),
            "usage": _usage(result, reasoning_token_count),
            **metrics_of([result]),
        }
        if status == "completed":
            told["completed_at"] = round(self.note.created + result.total_time)
        if status == "incomplete":
            told["incomplete_details"] = {"reason": "max_output_tokens"}
        if error is not None:
            told["error"] = {"code": _error_code(error), "message": str(error)}
        return {**self._body(turn, status), **told}

    def _body(self, turn: TurnId, status: str) -> dict[str, Any]:
        note, settings = self.note, self.settings
        return {
            "id": turn.response_id,
            "object": "response",
            "created_at": note.created,
            "completed_at": None,
            "status": status,
            "background": note.background,
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "max_output_tokens": settings.max_output_tokens,
            "max_tool_calls": None,
            "model": note.model,
            "output": [],
            "parallel_tool_calls": note.parallel_tool_calls,
            "previous_response_id": note.previous_response_id,
            "conversation": {"id": conversation_id(turn.session_id)} if note.in_conversation else None,
            "prompt_cache_key": None,
            "reasoning": None,
            "safety_identifier": None,
            "service_tier": "default",
            "store": note.store,
            "temperature": _short(settings.temperature, self.model.temperature),
            "text": {"format": self._format()},
            "tool_choice": "auto" if note.tool_choice is None else note.tool_choice,
            "tools": [tool.told(strict=tool.name in note.strict_tools) for tool in self.tools],
            "top_logprobs": note.top_logprobs or 0,
            "top_p": _short(settings.top_p, self.model.top_p),
            "presence_penalty": _short(settings.presence_penalty, 0.0),
            "frequency_penalty": _short(settings.frequency_penalty, 0.0),
            "truncation": "disabled",
            "usage": None,
            "user": note.user,
            "metadata": note.metadata,
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


def _usage(result: Result, reasoning_token_count: int) -> dict[str, Any]:
    return {
        "input_tokens": result.prompt_token_count,
        "input_tokens_details": {"cached_tokens": result.cached_token_count, "cache_write_tokens": 0},
        "output_tokens": result.generated_token_count,
        "output_tokens_details": {"reasoning_tokens": reasoning_token_count},
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
