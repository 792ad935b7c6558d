"""A turn from prompt to last token: rounds, commits, events, statistics, one trace."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode

from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.sessions.interrupt import Interrupt
from orchestrator.sessions.session import FinishReason, Turn, common_prefix_length
from orchestrator.sessions.settings import ResolvedTurn
from orchestrator.sessions.store import SessionRecord
from orchestrator.speculation.plan import Overlap
from orchestrator.speculation.proposal import Source
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.telemetry import names
from slipstream.telemetry.tracing import tracer

MAX_TRACED_ROUNDS = 250
"""Jaeger's page slows past about 2,000 spans; a round makes up to five."""


@dataclass(slots=True)
class TurnStatistics:
    """Counts of a turn, and where its time went, in seconds."""

    round_count: int = 0
    round_counts: Counter[Overlap] = field(default_factory=Counter)
    """Of the rounds that asked the draft or used what it had said, by what it did meanwhile."""
    draft_count: int = 0
    draft_token_count: int = 0
    accepted_token_count: int = 0
    ngram_token_count: int = 0
    ngram_accepted_token_count: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    switched_off_count: int = 0
    hit_count: int = 0
    miss_count: int = 0
    draft_failure_count: int = 0
    time_to_first_token: float = 0.0
    total: float = 0.0
    draft: float = 0.0
    draft_hidden: float = 0.0
    verify: float = 0.0
    queue: float = 0.0
    network: float = 0.0

    @property
    def orchestrator(self) -> float:
        """What the peers and the network do not account for."""
        return max(0.0, self.total - self.draft - self.verify - self.queue - self.network)

    def add(self, outcome: RoundResult) -> None:
        """Count one round."""
        self.round_count += 1
        self.draft_failure_count += outcome.draft_failed
        self.switched_off_count += outcome.switched_off
        self.verify += outcome.verify.forward
        self.queue += outcome.verify.total - outcome.verify.forward
        self.network += outcome.verify.round_trip - outcome.verify.total
        self._add_drafting(outcome)
        drafted, accepted = len(outcome.proposal), outcome.accepted_count
        if not drafted:
            return
        self.draft_count += 1
        self.draft_token_count += drafted
        self.accepted_token_count += accepted
        if outcome.proposal.source is Source.NGRAM:
            self.ngram_token_count += drafted
            self.ngram_accepted_token_count += accepted
        missing = [0] * (drafted - len(self.drafted_per_position))
        self.drafted_per_position.extend(missing)
        self.accepted_per_position.extend(missing)
        for position in range(drafted):
            self.drafted_per_position[position] += 1
            self.accepted_per_position[position] += position < accepted

    def _add_drafting(self, outcome: RoundResult) -> None:
        """What the round waited for is the draft's forwards first, then its queue, then the network's."""
        if outcome.asked:
            self.round_counts[outcome.overlap] += 1
        if outcome.hit is not None:
            self.hit_count += outcome.hit
            self.miss_count += not outcome.hit
        timing, waited = outcome.awaited, outcome.waited
        shown = queued = 0.0
        if timing is not None:
            shown = min(waited, timing.forward)
            queued = min(waited - shown, timing.total - timing.forward)
        self.draft += shown
        self.queue += queued
        self.network += waited - shown - queued
        self.draft_hidden += max(0.0, sum(timing.forward for timing in outcome.drafted) - shown)


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The turn's number, the seed in use and the prompt's length in tokens."""

    turn: int
    seed: int
    prompt_token_count: int


@dataclass(frozen=True, slots=True)
class TurnDelta:
    """Text that became certain, and the tokens whose round made it so; log-probabilities if they were asked for."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """Why the turn ended, what it used and how its rounds went."""

    finish_reason: FinishReason
    prompt_token_count: int
    cached_token_count: int
    generated_token_count: int
    statistics: TurnStatistics


TurnEvent = TurnStarted | TurnDelta | TurnFinished


class TurnRunner:
    """Runs turns over the rounds."""

    def __init__(self, rounds: Rounds, model_name: str) -> None:
        self.rounds = rounds
        self._model_name = model_name

    async def run(
        self,
        record: SessionRecord,
        prompt: Sequence[int],
        resolved: ResolvedTurn,
        *,
        content: str | None,
        cancelled: asyncio.Event,
        parent: Context,
    ) -> AsyncGenerator[TurnEvent]:
        """Generate after ``prompt``, which includes all earlier turns; ``content`` is the user message for the session.

        However it ends, by itself, by ``cancelled``, by an error or by being closed, what was committed stays.
        SessionBusyError, VerifierLostError or a PeerError that no retry mends.
        """
        session = record.session
        started = time.monotonic()
        shared = common_prefix_length(session.tokens, prompt)
        turn = session.begin_turn(list(prompt), resolved.rule, resolved.limits, content)
        wants_prompt = resolved.logprobs is not None and resolved.logprobs.prompt
        self.rounds.begin_turn(record.rounds, shared, recompute=wants_prompt)
        span = tracer.start_span(
            names.CHAT.format(model=self._model_name),
            parent,
            kind=SpanKind.SERVER,
            attributes=self._attributes(session.id, session.turn_count, resolved),
        )
        statistics = TurnStatistics()
        prefilled_count = 0
        interrupt = Interrupt(cancelled)
        try:
            yield TurnStarted(session.turn_count, resolved.rule.seed, len(prompt))
            while turn.finish_reason is None:
                outcome = await self._round(record, turn, resolved, statistics, span, interrupt)
                if outcome is None:
                    yield TurnDelta(turn.cancel(), ())
                    break
                if statistics.round_count == 0:
                    statistics.time_to_first_token = time.monotonic() - started
                    prefilled_count = outcome.prefilled_count
                statistics.add(outcome)
                commit = turn.commit(outcome.tokens)
                logprobs = outcome.logprobs[: len(commit.tokens)]
                yield TurnDelta(commit.text, commit.tokens, logprobs, outcome.prompt_logprobs)
            statistics.total = time.monotonic() - started
            assert turn.finish_reason is not None
            yield TurnFinished(
                turn.finish_reason,
                prompt_token_count=turn.prompt_length,
                cached_token_count=max(0, turn.prompt_length - prefilled_count) if statistics.round_count else 0,
                generated_token_count=turn.generated_count,
                statistics=statistics,
            )
        except Exception as error:
            span.set_status(Status(StatusCode.ERROR, str(error)))
            raise
        finally:
            interrupt.close()
            turn.cancel()  # if it has not ended: the client vanished, or a peer failed for good
            self._finish(span, turn, statistics, prefilled_count)
            self.rounds.end_turn(record.rounds, session.tokens, turn.generated_count)
            session.end_turn()

    async def _round(
        self,
        record: SessionRecord,
        turn: Turn,
        resolved: ResolvedTurn,
        statistics: TurnStatistics,
        parent: Span,
        interrupt: Interrupt,
    ) -> RoundResult | None:
        """One round, or None if the turn is cancelled before it ends."""
        traced = statistics.round_count < MAX_TRACED_ROUNDS
        span = tracer.start_span(names.ROUND, trace.set_span_in_context(parent)) if traced else INVALID_SPAN
        span.set_attribute(names.ROUND_NUMBER, statistics.round_count + 1)
        logprobs = resolved.logprobs
        if logprobs is not None and statistics.round_count:
            logprobs = replace(logprobs, prompt=False)  # the first round has brought them
        outcome: RoundResult | None = None
        try:
            if not interrupt.happened:
                with interrupt.during():
                    terms = RoundTerms(resolved.rule, resolved.speculation, logprobs)
                    outcome = await self.rounds.run(record.rounds, record.session.tokens, terms, turn.room, span)
            if outcome is None:
                return None
            span.set_attribute(names.DRAFT_LENGTH, len(outcome.proposal))
            span.set_attribute(names.OVERLAP, outcome.overlap.value)
            if outcome.proposal.tokens:
                span.set_attribute(names.PROPOSER, outcome.proposal.source.value)
            span.set_attribute(names.ACCEPTED_COUNT, outcome.accepted_count)
            span.set_attribute(names.COMMITTED_COUNT, len(outcome.tokens))
            return outcome
        finally:
            span.end()

    def _attributes(self, session_id: str, turn: int, resolved: ResolvedTurn) -> dict[str, str | int | float]:
        return {
            names.CONVERSATION_ID: session_id,
            names.OPERATION_NAME: "chat",
            names.REQUEST_MODEL: self._model_name,
            names.REQUEST_TEMPERATURE: resolved.rule.temperature,
            names.REQUEST_SEED: resolved.rule.seed,
            names.REQUEST_MAX_TOKENS: resolved.limits.max_token_count,
            names.TURN: turn,
        }

    def _finish(self, span: Span, turn: Turn, statistics: TurnStatistics, prefilled_count: int) -> None:
        assert turn.finish_reason is not None
        span.set_attributes(
            {
                names.RESPONSE_FINISH_REASONS: [turn.finish_reason.value],
                names.USAGE_INPUT_TOKENS: turn.prompt_length,
                names.USAGE_OUTPUT_TOKENS: turn.generated_count,
                names.CACHED_TOKENS: max(0, turn.prompt_length - prefilled_count),
                names.ROUND_COUNT: statistics.round_count,
                names.ROUNDS_NOT_TRACED: max(0, statistics.round_count - MAX_TRACED_ROUNDS),
            }
        )
        span.end()
