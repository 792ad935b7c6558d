"""The note that a response's turn keeps: what was asked and is not in the turn's settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class Note(BaseModel):
    """A part of a response's request. The orchestrator keeps it with the turn."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    created: int
    """When the request came, in seconds since the epoch."""
    model: str
    store: bool = True
    background: bool = False
    metadata: dict[str, str] = {}
    user: str | None = None
    previous_response_id: str | None = None
    in_conversation: bool = False
    """True if the session is a conversation."""
    is_instructed: bool = False
    """True if the session's system message is the response's instructions."""
    text_format: dict[str, Any] = {"type": "text"}
    top_logprobs: int | None = None
    """Number of likeliest tokens that are reported; None: no log-probabilities."""

    tool_choice: Any = None
    """The choice of tools as it was asked for; None: ``auto``."""
    parallel_tool_calls: bool = True
    strict_tools: list[str] = []
    """Names of the tools that were asked for as strict."""

    def text(self) -> str:
        """Return the note as the orchestrator keeps it."""
        return self.model_dump_json(exclude_defaults=True)


def note_of(text: str) -> Note | None:
    """Return a turn's note; None if the turn is no response."""
    try:
        return Note.model_validate_json(text)
    except ValidationError:
        return None
