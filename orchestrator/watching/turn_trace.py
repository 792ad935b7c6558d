"""A turn's trace: one root span, and once the turn has ended, below it those of its rounds that are
worth one."""

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
from orchestrator.speculation.plan import Overlap
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
"""Of one trace: Jaeger's page slows past about so many."""

_SESSION_ID = re.compile(r"[0-9a-f]{16,32}")
"""What names of sessions look like that an orchestrator has given."""
_SPANS_OF_A_LIVE_ROUND, _MOST_SPANS_OF_A_LIVE_ROUND = 5, 7
"""It, what it asks of the draft and the verifier, and what these say of themselves. Where nothing
that was prepared came true the draft is asked twice."""
_MOST_LIVE_ROUNDS = 240
_LEAST_ROUNDS = 2
"""Of a turn, whatever the budget says: the slowest, and that in which the least was accepted."""


WAYS = {Overlap.NONE: "wait", Overlap.ENUMERATE: "enumerate", Overlap.RUN_AHEAD: "run_ahead"}
"""What the draft does while the target verifies, where it is asked: it is waited for, or prepares,
or is rounds ahead."""


class Detail(Enum):
    """How much of a turn is traced."""

    TURN = "turn"
    """Its root span, with the sums."""
    ROUND = "round"
    """Its rounds too."""
    FULL = "full"
    """And what each round asked of the peers, and what these did."""


SPANS_A_SECOND = {Detail.TURN: 0.0, Detail.ROUND: 400.0, Detail.FULL: 1200.0}
"""Of a process, roots and the least of each turn not counted. A span costs 60 us of processor time,
most of it in the exporter."""


class TurnTrace:
    """Begins with the turn."""

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
        """To link to."""
        return self._span.get_span_context()

    def round_prefix(self) -> str:
        """What the next round's peers get as the beginning of a traceparent; empty if they shall
        make no spans."""
        if not self._prefix or self._detail is not Detail.FULL or self._live >= _MOST_LIVE_ROUNDS:
            return ""
        if not self._budget.take(_SPANS_OF_A_LIVE_ROUND):
            return ""
        self._live += 1
        return self._prefix

    def end(self, ended: TurnEnded, text: str, rounds: SampledRounds) -> int:
        """The turn has ended; returns how many of its rounds have no span."""
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
        each = 1 if self._detail is Detail.ROUND else 4  # those that are not live have no spans of the peers'
        left = rounds.kept_count - rounds.pinned_count
        room = (MOST_SPANS - 1 - rounds.pinned_count * _MOST_SPANS_OF_A_LIVE_ROUND) // each
        taken = self._budget.take_up_to(each * min(left, room), least=each * min(left, _LEAST_ROUNDS))
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
        """A moment of the monotonic clock as nanoseconds since the epoch."""
        return self._epoch_ns + int(moment * 1e9)


def round_attributes(note: RoundNote) -> dict[str, AttributeValue]:
    """What a round's span says."""
    plan = note.plan
    attributes: dict[str, AttributeValue] = {
        names.ROUND_NUMBER: note.number,
        names.BASE_LENGTH: note.base_length,
        names.PLANNED_LENGTH: plan.draft_length,
        names.PLAN_REASON: plan.why.value,
        names.WAY: WAYS[plan.overlap] if plan.draft_length else "none",
        names.SESSION_COUNT: note.session_count,
        names.VERIFIER_IDLE_MS: note.verifier_idle * 1e3,
    }
    if plan.rate is not None:
        attributes[names.FORECAST_RATE] = plan.rate
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
        if note.predicted is not None:
            attributes[names.PREDICTED_ACCEPTANCE] = note.predicted / note.drafted
    if note.hit is not None:
        attributes[names.BRANCH_HIT] = note.hit
    if note.draft_failed:
        attributes[names.DRAFT_FAILED] = True
    if math.isfinite(note.margin):
        attributes[names.LEAST_MARGIN] = note.margin
    return attributes


def exchange_attributes(exchange: ExchangeNote) -> dict[str, AttributeValue]:
    """What a request's span says: whom it went to, and where its time went. The network's share is
    what the peer's own clock does not account for."""
    host, _, port = exchange.address.rpartition(":")
    attributes: dict[str, AttributeValue] = {names.SERVER_ADDRESS: host.strip("[]")}
    if port.isdecimal():
        attributes[names.SERVER_PORT] = int(port)
    if exchange.draft_length:
        attributes[names.DRAFT_LENGTH] = exchange.draft_length
        attributes[names.IN_FLIGHT_LENGTH] = exchange.in_flight_length
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
    """A message or generation whose turn has not begun: a root span of no length. ``session_id`` is
    what the client called it, empty if there is none."""
    is_one = _SESSION_ID.fullmatch(session_id) is not None  # else it may be anything
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
    """As the GenAI conventions write messages."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}], ensure_ascii=False)
