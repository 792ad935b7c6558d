"""What the server says of its sessions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from google.protobuf.json_format import MessageToDict

from slipstream.v1 import orchestrator_pb2, session_pb2


def exported(parts: Iterable[orchestrator_pb2.ExportSessionResponse]) -> dict[str, Any]:
    """All that is kept of a session as one object of protobuf's JSON."""
    whole: dict[str, Any] = {}
    turns = []
    for part in parts:
        if part.HasField("session"):
            whole = MessageToDict(part.session)
        else:
            turns.append(MessageToDict(part.turn))
    return {**whole, "turns": turns}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; ``role`` is "system", "user" or "assistant"."""

    role: str
    content: str

    @classmethod
    def of(cls, message: session_pb2.Message) -> Message:
        """From the wire."""
        return cls(session_pb2.Role.Name(message.role).removeprefix("ROLE_").lower(), message.content)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as it was when the server was asked. Times are in UTC."""

    session_id: str
    create_time: datetime
    last_active_time: datetime
    """When a turn last began or ended."""
    expire_time: datetime
    """When the session expires if nothing happens before."""
    template_time: datetime
    """What the chat template's clock says in all of its turns."""
    turn_count: int
    """The running one included; turns that were undone do not count."""
    token_count: int
    """Committed tokens, prompts included."""
    message_count: int
    running_turn: int | None
    """None: none is running."""

    @classmethod
    def of(cls, message: session_pb2.Session) -> SessionInfo:
        """From the wire."""
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
        )
