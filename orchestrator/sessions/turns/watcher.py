"""Who looks at a turn, as the turn sees them. What they do with it is theirs
(`orchestrator.watching`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.result import RoundResult
from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.turns.acceptance_window import AcceptanceWindow
from orchestrator.sessions.turns.turn_record import TurnEnded


@dataclass(frozen=True, slots=True)
class TurnBegun:
    """What is known of a turn as it begins. Its trace goes on from ``parent`` and links to the
    ``previous`` turn's."""

    model_name: str
    session_id: str
    principal: str
    """Whose session it is."""
    turn: int
    resolved: ResolvedTurn
    window: AcceptanceWindow
    """The session's."""
    parent: Context
    previous: SpanContext | None = None
    content: str | None = None
    """What the user said; only where text may be shown."""
    lost_context_count: int = 0
    """Tokens of the session that its next prompt could not keep, and so their KV."""


class TurnWatch(Protocol):
    """One turn, as those who look at it see it. What they raise would end the turn, so they raise
    nothing."""

    @property
    def trace_context(self) -> SpanContext:
        """To link to."""

    def begin_round(self, number: int, base_length: int) -> RoundNote:
        """The note of the turn's next round."""

    def round_ended(self, note: RoundNote, result: RoundResult | None) -> None:
        """However it ended; without a result if it failed or was cancelled."""

    def ended(self, ended: TurnEnded, text: str) -> None:
        """Nothing follows. ``text`` is all that was said."""


class Watcher(Protocol):
    """Who looks at all turns."""

    @property
    def shows_text(self) -> bool:
        """Whether what is said may be shown, and is wanted as text."""

    def begin_turn(self, begun: TurnBegun) -> TurnWatch:
        """A turn begins."""

    def refused(self, error: Exception, model_name: str, parent: Context, session_id: str) -> None:
        """A message or a generation was refused; ``session_id`` is what the client called it, empty
        if there is none, and so is ``model_name`` while no pair is served."""

    def session_expired(self) -> None:
        """One was idle for too long."""
