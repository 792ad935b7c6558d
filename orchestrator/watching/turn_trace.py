"""The trace of a turn: a root span, and when the turn has ended, spans of its sampled rounds."""

from __future__ import annotations

import json
import math
import re
import time
from enum import Enum

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from orchestrator.rounds.note import ExchangeNote, RoundNote
from orchestrator.sessions.turns.turn_record import TurnEnded
from orchestrator.sessions.turns.watcher import TurnBegun
from orchestrator.watching.budget import SpanBudget
from orchestrator.watching.sampled_rounds import SampledRounds
from slipstream.telemetry import names
from slipstream.telemetry.tracing import (
    AttributeValue,
    fail_with,
    span_below,
    trace_prefix_of,
    tracer,
    write_span,
)

MOST_SPANS = 2000
"""Most spans of a trace: Jaeger's page slows down beyond that."""

_SESSION_ID = re.compile(r"[0-9a-f]{16,32}")
"""The form of session ids that an orchestrator makes."""
_SPANS_OF_A_LIVE_ROUND, _MOST_SPANS_OF_A_LIVE_ROUND = 5, 7
"""Spans of a round whose peers add spans: its own, those of its requests, and those of the peers.
If no prepared branch matched, the round asks the draft twice."""
_MOST_LIVE_ROUNDS = 240
_LEAST_ROUNDS = 2
"""Rounds of a turn with a span even beyond the budget: the slowest, and the one in which the
least was accepted."""


class Detail(Enum):
    """The level of detail of traces."""

    TURN = "turn"
    """The root span of each turn, with sums."""
    ROUND = "round"
    """The root span and the sampled rounds."""
    FULL = "full"
    """The rounds with their requests to peers, and the work of the peers."""


SPANS_A_SECOND = {Detail.TURN: 0.0, Detail.ROUND: 400.0, Detail.FULL: 1200.0}
"""Spans a second of a process, beside roots and the least rounds of each turn. A span costs 60 us
of processor time, most of it in the exporter."""


class TurnTrace:
    """The trace of one turn, from its begin on."""

    def __init__(self, begun: TurnBegun, detail: Detail, budget: SpanBudget, *, shows_text: bool) -> None:
        resolved = begun.resolved
        rule = resolved.terms.rule
        attributes: dict[str, AttributeValue] = {
            names.CONVERSATION_ID: begun.session_id,
            names.TURN: begun.turn,
            names.REQUEST_TEMPERATURE: rule.temperature,
            names.REQUEST_SEED: rule.seed,
            names.REQUEST_MAX_TOKENS: resolved.limits.max_token_count,
        }
        if shows_text and begun.content is not None:
            attributes[names.INPUT_MESSAGES] = _message("user", begun.content)
        self._span = _begin(begun.model_name, begun.parent, attributes, begun.previous)
        self._model_name = begun.model_name
        self._prefix = trace_prefix_of(self._span)
        self._detail = detail
        self._budget = budget
        self._shows_text = shows_text
        self._live = 0
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    @property
    def context(self) -> SpanContext:
        """The span that other spans link to."""
        return self._span.get_span_context()

    def round_prefix(self) -> str:
        """Return the start of a traceparent for the next round's peers; empty if they make no
        spans."""
        if not self._prefix or self._detail is not Detail.FULL or self._live >= _MOST_LIVE_ROUNDS:
            return ""
        if not self._budget.spend(_SPANS_OF_A_LIVE_ROUND):
            return ""
        self._live += 1
        return self._prefix

    def end(self, ended: TurnEnded, text: str, rounds: SampledRounds) -> int:
        """End the trace; return how many rounds have no span."""
        if not self._span.is_recording():
            return 0
        shown = self._shown(rounds)
        for note in shown:
            self._write_round(note)
        self._show_sums(ended, rounds.count - len(shown))
        if self._shows_text:
            self._span.set_attribute(names.OUTPUT_MESSAGES, _message("assistant", text))
        if ended.error is not None:
            fail_with(self._span, ended.error)
        self._span.end()
        return rounds.count - len(shown)

    def _shown(self, rounds: SampledRounds) -> list[RoundNote]:
        if self._detail is Detail.TURN:
            return []
        each = 1 if self._detail is Detail.ROUND else 4  # rounds that are not live have no spans of peers
        left = rounds.kept_count - rounds.pinned_count
        room = (MOST_SPANS - 1 - rounds.pinned_count * _MOST_SPANS_OF_A_LIVE_ROUND) // each
        taken = self._budget.spend_up_to(each * min(left, room), least=each * min(left, _LEAST_ROUNDS))
        return rounds.best(taken // each)

    def _show_sums(self, ended: TurnEnded, folded: int) -> None:
        statistics = ended.statistics
        self._span.set_attributes(
            {
                names.USAGE_INPUT_TOKENS: ended.prompt_token_count,
                names.USAGE_OUTPUT_TOKENS: ended.generated_token_count,
                names.USAGE_CACHE_READ_INPUT_TOKENS: ended.cached_token_count,
                names.CACHED_TOKENS: ended.cached_token_count,
                names.ROUND_COUNT: statistics.round_count,
                names.ROUNDS_NOT_TRACED: folded,
                names.DRAFT_TOKEN_COUNT: statistics.draft_token_count,
                names.ACCEPTED_TOKEN_COUNT: statistics.accepted_token_count,
                names.DRAFT_FAILURE_COUNT: statistics.draft_failure_count,
                names.TIME_TO_FIRST_TOKEN_MS: statistics.time_to_first_token * 1e3,
                names.ADMISSION_MS: statistics.admission * 1e3,
                names.DRAFT_MS: statistics.draft * 1e3,
                names.DRAFT_HIDDEN_MS: statistics.draft_hidden * 1e3,
                names.VERIFY_MS: statistics.verify * 1e3,
                names.QUEUE_MS: statistics.queue * 1e3,
                names.NETWORK_MS: statistics.network * 1e3,
                names.ORCHESTRATOR_MS: statistics.orchestrator * 1e3,
                names.RESPONSE_FINISH_REASONS: ["error" if ended.error is not None else ended.finish_reason.value],
            }
        )
        if statistics.round_count:
            self._span.set_attribute(names.RESPONSE_MODEL, self._model_name)
            self._span.set_attribute(names.RESPONSE_TIME_TO_FIRST_CHUNK, statistics.time_to_first_token)
        if statistics.draft_token_count:
            self._span.set_attribute(names.ACCEPTANCE, statistics.accepted_token_count / statistics.draft_token_count)

    def _write_round(self, note: RoundNote) -> None:
        context = span_below(self.context)
        ending = note.ending
        write_span(
            names.ROUND,
            context,
            self.context,
            self._ns(note.began),
            self._ns(note.ended),
            {**round_attributes(note), **({} if ending is None else ending.attributes)},
            status=None if ending is None else ending.status,
        )
        if self._detail is Detail.FULL:
            for exchange in (*note.proposes, *([note.verify] if note.verify is not None else ())):
                self._write_exchange(exchange, context)

    def _write_exchange(self, exchange: ExchangeNote, parent: SpanContext) -> None:
        ending = exchange.ending
        attributes = exchange_attributes(exchange) | ({} if ending is None else ending.attributes)
        if exchange.left or exchange.ended is None:
            attributes[names.OUTCOME] = "left"
        ended = self._ns(exchange.ended) if exchange.ended is not None else time.time_ns()
        write_span(
            exchange.name,
            span_below(parent, exchange.span_id),
            parent,
            self._ns(exchange.began),
            ended,
            attributes,
            kind=SpanKind.CLIENT,
            status=None if ending is None else ending.status,
            events=[(self._ns(moment), reason) for moment, reason in exchange.setbacks],
        )

    def _ns(self, moment: float) -> int:
        """Return a moment of the monotonic clock as nanoseconds since the epoch."""
        return self._epoch_ns + int(moment * 1e9)


def round_attributes(note: RoundNote) -> dict[str, AttributeValue]:
    """Return the attributes of a round's span."""
    attributes: dict[str, AttributeValue] = {
        names.ROUND_NUMBER: note.number,
        names.BASE_LENGTH: note.base_length,
        names.SESSION_COUNT: note.session_count,
        names.VERIFIER_IDLE_MS: note.verifier_idle * 1e3,
    }
    if note.verify is not None and note.verify.timing is not None:
        timing = note.verify.timing
        attributes[names.VERIFY_MS] = timing.forward * 1e3
        attributes[names.QUEUE_MS] = timing.queue * 1e3
        attributes[names.NETWORK_MS] = note.verify.network * 1e3
        attributes[names.PREFILL_MS] = timing.prefill * 1e3
    if note.ending is not None:
        return attributes
    attributes |= {
        names.DRAFT_LENGTH: note.drafted,
        names.ACCEPTED_COUNT: note.accepted,
        names.COMMITTED_COUNT: note.committed,
        names.NEXT_TOKEN_KIND: note.outcome,
        names.RUNG: note.rung,
        names.WAITED_MS: note.waited * 1e3,
    }
    if note.drafted:
        attributes[names.ACCEPTANCE] = note.accepted / note.drafted
    if note.draft_failed:
        attributes[names.DRAFT_FAILED] = True
    if math.isfinite(note.margin):
        attributes[names.LEAST_MARGIN] = note.margin
    return attributes


def exchange_attributes(exchange: ExchangeNote) -> dict[str, AttributeValue]:
    """Return the attributes of a request's span: its peer, and where its time went.

    The network's share is the time that the peer's own clock does not account for.
    """
    host, _, port = exchange.address.rpartition(":")
    attributes: dict[str, AttributeValue] = {names.SERVER_ADDRESS: host.strip("[]")}
    if port.isdecimal():
        attributes[names.SERVER_PORT] = int(port)
    if exchange.draft_length:
        attributes[names.DRAFT_LENGTH] = exchange.draft_length
    timing = exchange.timing
    if timing is not None:
        attributes |= {
            names.QUEUE_MS: timing.queue * 1e3,
            names.FORWARD_MS: timing.forward * 1e3,
            names.PREFILL_MS: timing.prefill * 1e3,
            names.NETWORK_MS: exchange.network * 1e3,
            names.STEP_TOKEN_COUNT: timing.step_token_count,
        }
    return attributes


def write_refused(model_name: str, parent: Context, session_id: str, error: Exception) -> None:
    """Write a root span of no length for a message or generation that was refused.

    ``session_id`` is the one that the client sent, empty if there is none.
    """
    is_one = _SESSION_ID.fullmatch(session_id) is not None  # a client may send anything
    span = _begin(model_name, parent, {names.CONVERSATION_ID: session_id} if is_one else {})
    fail_with(span, error)
    span.end()


def _begin(
    model_name: str, parent: Context, attributes: dict[str, AttributeValue], linked: SpanContext | None = None
) -> Span:
    known: dict[str, AttributeValue] = {
        names.OPERATION_NAME: "chat",
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: model_name,
    }
    return tracer.start_span(
        names.CHAT.format(model=model_name),
        parent,
        kind=SpanKind.SERVER,
        attributes={**known, **attributes},
        links=[Link(linked)] if linked is not None and linked.is_valid else [],
    )


def _message(role: str, text: str) -> str:
    """Return a message in the form of the GenAI conventions."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}], ensure_ascii=False)
