"""The watcher of all turns: it feeds traces, totals, the ring of last turns, and the log."""

from __future__ import annotations

import logging
import os

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.result import RoundResult
from orchestrator.sessions.turns.turn_record import TurnEnded
from orchestrator.sessions.turns.watcher import TurnBegun
from orchestrator.watching.acceptance import AcceptanceTally, TurnAcceptance
from orchestrator.watching.budget import SpanBudget
from orchestrator.watching.ring import TurnNote, TurnRing
from orchestrator.watching.totals import Totals
from orchestrator.watching.turn_log import log_turn
from orchestrator.watching.turn_trace import SPANS_A_SECOND, Detail, TurnTrace, write_refused
from slipstream.errors import SlipstreamError

log = logging.getLogger(__name__)

_BURST_SECONDS = 2.0
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class Watching:
    """Observes all turns of this process."""

    def __init__(self, detail: Detail = Detail.FULL) -> None:
        """Traces hold text only if OpenTelemetry's environment variable for that is ``true``."""
        self._totals = Totals()
        self.acceptance = AcceptanceTally()
        self.ring = TurnRing()
        self.detail = detail
        self.shows_text = os.environ.get(_CAPTURE, "").strip().lower() == "true"
        self.budget = SpanBudget(SPANS_A_SECOND[detail], SPANS_A_SECOND[detail] * _BURST_SECONDS)

    @property
    def totals(self) -> Totals:
        """The totals up to now."""
        self._totals.fold()
        return self._totals

    def begin_turn(self, begun: TurnBegun) -> WatchedTurn:
        """Observe a turn that begins."""
        return WatchedTurn(self, self._totals, begun)

    def refused(self, error: Exception, model_name: str, parent: Context, session_id: str) -> None:
        """Observe a message or a generation that was refused. An error here is logged."""
        self._totals.rejected[reason_of(error)] += 1
        if not model_name:
            return
        try:
            write_refused(model_name, parent, session_id, error)
        except Exception:
            log.exception("a message of session %s was refused, and its trace failed", session_id)

    def call_refused(self, method: str, error: BaseException) -> None:
        """Observe a call, or a command of a Chat, that ended with an error."""
        self._totals.refused_calls[method, reason_of(error)] += 1

    def session_expired(self) -> None:
        """Observe a session that was idle for too long."""
        self._totals.expired += 1


class WatchedTurn:
    """Observes one turn."""

    def __init__(self, watching: Watching, totals: Totals, begun: TurnBegun) -> None:
        self._watching = watching
        self._totals = totals
        totals.lost_context_tokens += begun.lost_context_count
        self._trace = TurnTrace(begun, watching.detail, watching.budget, shows_text=watching.shows_text)
        context = self._trace.context
        trace_id = f"{context.trace_id:032x}" if context.is_valid and context.trace_flags.sampled else ""
        self._note = TurnNote(begun.session_id, begun.turn, begun.principal, trace_id=trace_id)
        self._answered = self._note.began
        self._window = begun.window
        resolved = begun.resolved
        self._acceptance = TurnAcceptance(resolved.task, begun.principal, begun.target, resolved.terms.rule.temperature)
        watching.ring.begin(self._note)

    @property
    def trace_context(self) -> SpanContext:
        """The span that other spans link to."""
        return self._trace.context

    def begin_round(self, number: int, base_length: int) -> RoundNote:
        """Return the note of the turn's next round."""
        return RoundNote(number, base_length, self._answered, self._trace.round_prefix())

    def round_ended(self, note: RoundNote, result: RoundResult | None) -> None:
        """Observe the end of a round."""
        self._answered = note.ended
        self._totals.add_round(note, result, self._window)
        if result is not None and note.drafted:
            self._acceptance.add(result.maker, note.drafted, note.accepted)
        self._note.rounds.add(note)

    def ended(self, ended: TurnEnded, text: str) -> None:
        """Observe the end of the turn. An error here is logged, and does not affect the turn."""
        note, watching = self._note, self._watching
        note.total = ended.statistics.total
        reason = "" if ended.error is None else reason_of(ended.error)
        try:
            self._totals.add_turn(ended, reason)
            watching.acceptance.end_turn(self._acceptance)
            watching.ring.end(note)
            log_turn(note.session_id, note.turn, note.principal, note.trace_id, ended, reason)
            self._totals.folded += self._trace.end(ended, text, note.rounds)
        except Exception:
            log.exception("turn %d of session %s has ended, and its trace or log failed", note.turn, note.session_id)


def reason_of(error: BaseException) -> str:
    """Return the reason as clients get it; the class's name if there is none."""
    return error.reason if isinstance(error, SlipstreamError) else type(error).__qualname__
