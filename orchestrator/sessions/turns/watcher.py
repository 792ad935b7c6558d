"""The observer of all turns, as turns see it; `orchestrator.watching` implements it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.turns.acceptance_window import AcceptanceWindow
from orchestrator.sessions.turns.turn_record import TurnWatch


@dataclass(frozen=True, slots=True)
class TurnBegun:
    """The facts about a turn that begins. Its trace continues ``parent`` and links to the
    ``previous`` turn's."""

    model_name: str
    target: str
    """Fingerprint of the target's weights."""
    session_id: str
    principal: str
    """The principal that owns the session."""
    turn: int
    resolved: ResolvedTurn
    window: AcceptanceWindow
    """The session's."""
    parent: Context
    previous: SpanContext | None = None
    content: str | None = None
    """The user's message; set only if text may be shown."""
    lost_context_count: int = 0
    """Tokens of the session that its next prompt could not keep, and so their KV."""


class Watcher(Protocol):
    """Observes all turns."""

    @property
    def shows_text(self) -> bool:
        """True if traces may hold what users and models write."""

    def begin_turn(self, begun: TurnBegun) -> TurnWatch:
        """Observe a turn that begins."""

    def refused(self, error: Exception, model_name: str, parent: Context, session_id: str) -> None:
        """Observe a message or a generation that was refused.

        ``session_id`` is the one that the client sent, empty if there is none. ``model_name`` is
        empty while no pair is served.
        """

    def session_expired(self) -> None:
        """Observe a session that was idle for too long."""
