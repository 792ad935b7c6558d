"""Descriptions of sessions, as the server gives them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.protobuf.json_format import MessageToDict

from slipstream.v1 import orchestrator_pb2, session_pb2


def exported(parts: Iterable[orchestrator_pb2.ExportSessionResponse]) -> dict[str, Any]:
    """Return all that is stored of a session as one object of protobuf's JSON."""
    whole: dict[str, Any] = {}
    turns = []
    for part in parts:
        if part.HasField("session"):
            whole = MessageToDict(part.session)
        else:
            turns.append(MessageToDict(part.turn))
    return {**whole, "turns": turns}


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as it was when the server was asked. Times are in UTC."""

    session_id: str
    create_time: datetime
    last_active_time: datetime
    """Time at which a turn last began or ended."""
    expire_time: datetime
    """Time at which the session expires if no turn begins or ends before."""
    template_time: datetime
    """The time that the chat template sees in all turns of the session."""
    turn_count: int
    """Number of turns, the running one included. Undone turns do not count."""
    token_count: int
    """Committed tokens, prompts included."""
    message_count: int
    running_turn: int | None
    """The running turn's number; None if no turn runs."""
    metadata: dict[str, str] = field(default_factory=dict, hash=False)
    """Texts by key that its creator keeps with it."""

    @classmethod
    def from_message(cls, message: session_pb2.Session) -> SessionInfo:
        """Convert a message."""
        return cls(
            session_id=message.id,
            create_time=message.create_time.ToDatetime(UTC),
            last_active_time=message.last_active_time.ToDatetime(UTC),
            expire_time=message.expire_time.ToDatetime(UTC),
            template_time=message.template_time.ToDatetime(UTC),
            turn_count=message.turn_count,
            token_count=message.token_count,
            message_count=message.message_count,
            running_turn=message.running_turn if message.HasField("running_turn") else None,
            metadata=dict(message.metadata),
        )
