"""The commands and events of a Chat stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.sessions.admission.principal import ANONYMOUS, Principal
from orchestrator.sessions.durability.loaded import SessionRecord
from orchestrator.sessions.entrance.requests import NewSession, UserMessage
from orchestrator.sessions.turns.turn_record import TurnEvent
from slipstream.errors import SlipstreamError


@dataclass(frozen=True, slots=True)
class StartChat:
    """Create a session, or resume one with settings of the stream's own."""

    session_id: str | None
    session: NewSession

    @property
    def request_id(self) -> str:
        """The client's name for the command."""
        return self.session.name.id


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Start a turn and watch it from a position.

    Its trace continues ``traceparent``, or the stream's trace if that is empty.
    """

    message: UserMessage
    after_token_count: int = 0
    traceparent: str = ""

    @property
    def request_id(self) -> str:
        """The client's name for the message."""
        return self.message.name.id


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """Cancel a turn, named by its number or by the request_id of its message."""

    which: int | str
    request_id: str = ""
    caller: Principal = ANONYMOUS


@dataclass(frozen=True, slots=True)
class BadCommand:
    """A command that the contract could not read."""

    error: SlipstreamError
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The session of the stream."""

    record: SessionRecord


class TurnHappened(NamedTuple):
    """An event of a turn."""

    turn: int
    event: TurnEvent


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """The error of a command; the stream goes on."""

    request_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class ChatClosing:
    """The server ends the stream."""

    error: SlipstreamError


Command = StartChat | SendMessage | CancelTurn | BadCommand
ChatEvent = SessionOpened | TurnHappened | CommandFailed | ChatClosing
