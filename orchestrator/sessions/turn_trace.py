"""A turn's trace: one root span, and below it one for each round."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanContext, SpanKind

from orchestrator.rounds.result import RoundResult
from orchestrator.sessions.resolving import ResolvedTurn
from orchestrator.sessions.turn_record import TurnEnded
from slipstream.telemetry import names
from slipstream.telemetry.tracing import AttributeValue, child_span, fail_with, tracer

MAX_TRACED_ROUNDS = 250
"""Jaeger's page slows past about 2,000 spans; a round makes up to five."""

_LONGEST_ID = 64


class TurnTrace:
    """Begins with the turn."""

    def __init__(
        self,
        model_name: str,
        parent: Context,
        session_id: str,
        turn: int,
        resolved: ResolvedTurn,
        previous: SpanContext | None,
    ) -> None:
        """``previous`` is the session's last turn's, which is linked to."""
        rule = resolved.terms.rule
        self._span = _begin(
            model_name,
            parent,
            {
                names.CONVERSATION_ID: session_id,
                names.TURN: turn,
                names.REQUEST_TEMPERATURE: rule.temperature,
                names.REQUEST_SEED: rule.seed,
                names.REQUEST_MAX_TOKENS: resolved.limits.max_token_count,
            },
            previous,
        )

    @property
    def context(self) -> SpanContext:
        """To link to."""
        return self._span.get_span_context()

    def begin_round(self, number: int) -> Span:
        """The span of the turn's round of this number, from 1 on. It is for the caller to end."""
        span = child_span(names.ROUND, self._span) if number <= MAX_TRACED_ROUNDS else INVALID_SPAN
        span.set_attribute(names.ROUND_NUMBER, number)
        return span

    def end(self, ended: TurnEnded) -> None:
        """The turn has ended."""
        span, statistics = self._span, ended.statistics
        if not span.is_recording():
            return
        span.set_attributes(
            {
                names.USAGE_INPUT_TOKENS: ended.prompt_token_count,
                names.USAGE_OUTPUT_TOKENS: ended.generated_token_count,
                names.CACHED_TOKENS: ended.cached_token_count,
                names.ROUND_COUNT: statistics.round_count,
                names.ROUNDS_NOT_TRACED: max(0, statistics.round_count - MAX_TRACED_ROUNDS),
                names.DRAFT_TOKEN_COUNT: statistics.draft_token_count,
                names.ACCEPTED_TOKEN_COUNT: statistics.accepted_token_count,
                names.DRAFT_FAILURE_COUNT: statistics.draft_failure_count,
                names.TIME_TO_FIRST_TOKEN_MS: statistics.time_to_first_token * 1e3,
                names.DRAFT_MS: statistics.draft * 1e3,
                names.DRAFT_HIDDEN_MS: statistics.draft_hidden * 1e3,
                names.VERIFY_MS: statistics.verify * 1e3,
                names.QUEUE_MS: statistics.queue * 1e3,
                names.NETWORK_MS: statistics.network * 1e3,
                names.ORCHESTRATOR_MS: statistics.orchestrator * 1e3,
            }
        )
        if ended.error is None:
            span.set_attribute(names.RESPONSE_FINISH_REASONS, [ended.finish_reason.value])
        else:
            span.set_attribute(names.RESPONSE_FINISH_REASONS, ["error"])
            fail_with(span, ended.error)
        span.end()


def show_round(span: Span, result: RoundResult) -> None:
    """What a round brought."""
    if not span.is_recording():
        return
    drafted = len(result.proposal)
    attributes: dict[str, AttributeValue] = {
        names.DRAFT_LENGTH: drafted,
        names.OVERLAP: result.overlap.value,
        names.ACCEPTED_COUNT: result.accepted_count,
        names.COMMITTED_COUNT: len(result.tokens),
        names.NEXT_TOKEN_KIND: "recovered" if result.accepted_count < drafted else "bonus" if drafted else "plain",
        names.WAITED_MS: result.waited * 1e3,
    }
    if drafted:
        attributes[names.PROPOSER] = result.proposal.source.value
    if result.hit is not None:
        attributes[names.BRANCH_HIT] = result.hit
    span.set_attributes(attributes)


def show_refused(model_name: str, parent: Context, session_id: str, error: Exception) -> None:
    """A message or generation whose turn has not begun: a root span of no length. ``session_id`` is what the client called it,
    empty if there is none."""
    span = _begin(model_name, parent, {names.CONVERSATION_ID: session_id[:_LONGEST_ID]} if session_id else {})
    fail_with(span, error)
    span.end()


def _begin(
    model_name: str, parent: Context, attributes: dict[str, AttributeValue], linked: SpanContext | None = None
) -> Span:
    known: dict[str, AttributeValue] = {names.OPERATION_NAME: "chat", names.REQUEST_MODEL: model_name}
    return tracer.start_span(
        names.CHAT.format(model=model_name),
        parent,
        kind=SpanKind.SERVER,
        attributes={**known, **attributes},
        links=[Link(linked)] if linked is not None and linked.is_valid else [],
    )
