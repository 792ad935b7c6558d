"""One round: a proposal from the draft if it can be had, the verifier's answer to it, and what both peers hold now.

Every request states its position, so a lost handle, a cut cache, a lost stream and a restarted service are all mended
the same way: state the position again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from orchestrator.errors import VerifierLostError
from orchestrator.peer_sequence import PeerSequence
from orchestrator.peers import (
    DraftPeer,
    ModelInfo,
    PeerTiming,
    Proposal,
    Proposed,
    Verification,
)
from orchestrator.policy import Breaker
from orchestrator.store import SessionRecord
from orchestrator.verifiers import Verifiers
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.outcome import LogprobRequest, TokenLogprobs
from slipstream.sampling.rule import SamplingRule
from slipstream.telemetry import names
from slipstream.telemetry.tracing import traceparent_of, tracer

log = logging.getLogger(__name__)

_REASONS_TO_RESTATE = ("UNKNOWN_HANDLE", "SEQUENCE_TOO_SHORT")
_STRANGER_REASONS = ("WEIGHTS_MISMATCH", "TOKENIZER_MISMATCH")
"""A verifier that came back with another model is as good as away."""

_MAX_RESTATEMENTS = 3
_NOTHING_PROPOSED = Proposal(())
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Round:
    """What one round brought. ``tokens`` are ready to commit: the accepted ones and the next one."""

    tokens: tuple[int, ...]
    draft_length: int
    accepted_count: int
    prefilled_count: int
    verify: PeerTiming
    propose: PeerTiming | None
    draft_failed: bool
    logprobs: tuple[TokenLogprobs, ...]
    """One for each of ``tokens``, if asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...]
    """Of the prompt's tokens from the second on, if asked for."""


class Rounds:
    """Runs rounds for all sessions over the verifiers of one target and at most one draft."""

    def __init__(
        self,
        verifiers: Verifiers,
        draft: DraftPeer | None,
        target: ModelInfo,
        *,
        lease_seconds: float,
        draft_deadline_seconds: float,
        verifier_patience_seconds: float,
    ) -> None:
        self.verifiers = verifiers
        self.draft = draft
        self._target = target
        self._lease_seconds = lease_seconds
        self._draft_deadline = draft_deadline_seconds
        self._patience = verifier_patience_seconds
        self._breaker = Breaker()

    async def run(
        self,
        record: SessionRecord,
        rule: SamplingRule,
        draft_length: int,
        logprobs: LogprobRequest | None,
        span: Span,
    ) -> Round:
        """Propose and verify after the session's committed tokens. VerifierLostError, or a PeerError no retry mends."""
        tokens = record.session.tokens
        length = len(tokens)
        if draft_length:
            await self._open_both(record)
        proposed, draft_failed = await self._propose(record.draft, tokens, draft_length, rule, span)
        proposal = _NOTHING_PROPOSED
        if proposed is not None:
            proposal = proposed.proposal.usable(draft_length, self._target.vocabulary_size)
            if rule.draws_ratios and (fault := proposal.fault(self._target.vocabulary_size)) is not None:
                log.warning("the draft service's distributions are wrong (%s): a round goes on without them", fault)
                proposal, draft_failed = _NOTHING_PROPOSED, True
        answer = await self._verify(record.verifier, tokens, proposal, rule, logprobs, span)
        record.verifier.learn(length + answer.accepted_count)
        if proposed is not None:
            # The draft chose its last token but never appended it.
            record.draft.learn(length + min(answer.accepted_count, len(proposed.proposal.tokens) - 1))
        return Round(
            tokens=(*proposal.tokens[: answer.accepted_count], answer.next_token),
            draft_length=len(proposal.tokens),
            accepted_count=answer.accepted_count,
            prefilled_count=answer.prefilled_count,
            verify=answer.timing,
            propose=proposed.timing if proposed else None,
            draft_failed=draft_failed,
            logprobs=answer.logprobs,
            prompt_logprobs=answer.tail_logprobs,
        )

    def release(self, record: SessionRecord) -> None:
        """Give a session's pages back on both peers."""
        self.verifiers.release(record.verifier)
        if self.draft is not None:
            self.draft.close_sequence(record.draft.handle)
            record.draft.forget()

    async def _propose(
        self, sequence: PeerSequence, tokens: Sequence[int], draft_length: int, rule: SamplingRule, parent: Span
    ) -> tuple[Proposed | None, bool]:
        """A proposal and False; None and whether that was the draft's failure."""
        draft = self.draft
        if draft is None or draft.info is None or draft_length == 0 or not self._breaker.allows:
            return None, False
        with _client_span(names.PROPOSE, parent) as span:
            span.set_attribute(names.DRAFT_LENGTH, draft_length)
            try:
                async with asyncio.timeout(self._draft_deadline):
                    proposed = await self._propose_once(draft, sequence, tokens, draft_length, rule, span)
            except (PeerError, TimeoutError) as error:
                reason = error.reason if isinstance(error, PeerError) else "DRAFT_LATE"
                span.set_attribute(names.ERROR_REASON, reason)
                if _is_the_drafts_fault(error):
                    self._breaker.failed()
                    log.warning("the draft service failed a round (%s): going on without it", reason)
                return None, True
        self._breaker.succeeded()
        return proposed, False

    async def _propose_once(
        self,
        draft: DraftPeer,
        sequence: PeerSequence,
        tokens: Sequence[int],
        draft_length: int,
        rule: SamplingRule,
        span: Span,
    ) -> Proposed:
        for attempt in range(_MAX_RESTATEMENTS):
            try:
                handle = await self._draft_handle(draft, sequence)
                position = sequence.position(tokens)
                return await draft.propose(
                    handle, sequence.next_round(), position, draft_length, rule, traceparent_of(span)
                )
            except PeerError as error:
                if error.reason not in _REASONS_TO_RESTATE or attempt == _MAX_RESTATEMENTS - 1:
                    raise
                _restate(sequence, error)
        raise AssertionError("unreachable")

    async def _verify(
        self,
        sequence: PeerSequence,
        tokens: Sequence[int],
        proposal: Proposal,
        rule: SamplingRule,
        logprobs: LogprobRequest | None,
        parent: Span,
    ) -> Verification:
        """The answer of the session's verifier, or of another one, asked for again as long as patience lasts."""
        give_up = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        restatements = 0
        with _client_span(names.VERIFY, parent) as span:
            while True:
                try:
                    handle = await self._verifier_handle(sequence)
                    position = sequence.position(tokens)
                    answer = await self.verifiers.home(sequence).verify(
                        handle, sequence.next_round(), position, proposal, rule, logprobs, traceparent_of(span)
                    )
                    self.verifiers.answered(sequence)
                    return answer
                except PeerError as error:
                    if error.reason in _REASONS_TO_RESTATE and restatements < _MAX_RESTATEMENTS:
                        restatements += 1
                        _restate(sequence, error)
                        continue
                    span.set_attribute(names.ERROR_REASON, error.reason)
                    absent = error.code is Code.UNAVAILABLE or error.reason in _STRANGER_REASONS
                    if not absent and error.code is not Code.RESOURCE_EXHAUSTED:
                        raise
                    if time.monotonic() + pause > give_up:
                        if absent:
                            raise self._lost(error) from error
                        raise
                    if absent and self.verifiers.leave(sequence):
                        continue
                    if error.reason in _STRANGER_REASONS and self.verifiers.is_alone:
                        raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                restatements = 0

    def _lost(self, error: PeerError) -> VerifierLostError:
        where = f"the verifier at {self.verifiers}"
        return VerifierLostError(f"{where} has been away for {self._patience:g} s: {error}")

    async def _open_both(self, record: SessionRecord) -> None:
        """Open what is not open yet in one round trip instead of two. Failures show, and are mended, further on."""
        if self.draft is None or self.draft.info is None or not self._breaker.allows:
            return
        missing: list[Awaitable[str]] = []
        if record.draft.handle is None:
            missing.append(self._draft_handle(self.draft, record.draft))
        if record.verifier.handle is None:
            missing.append(self._verifier_handle(record.verifier))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._draft_deadline):
                await asyncio.gather(*missing, return_exceptions=True)

    async def _draft_handle(self, draft: DraftPeer, sequence: PeerSequence) -> str:
        if sequence.handle is None:
            sequence.handle = await draft.open_sequence(self._target.tokenizer_fingerprint, "", self._lease_seconds)
            sequence.round = 0
        return sequence.handle

    async def _verifier_handle(self, sequence: PeerSequence) -> str:
        if sequence.handle is None:
            target = self._target
            sequence.handle = await self.verifiers.home(sequence).open_sequence(
                target.tokenizer_fingerprint, target.weights_fingerprint, self._lease_seconds
            )
            sequence.round = 0
        return sequence.handle


def _is_the_drafts_fault(error: PeerError | TimeoutError) -> bool:
    """Whether other sessions should leave the draft alone too, or this is one session's trouble."""
    if isinstance(error, TimeoutError) or error.reason == "QUEUE_FULL":
        return True
    return error.code in (Code.UNAVAILABLE, Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED, Code.DEADLINE_EXCEEDED)


def _restate(sequence: PeerSequence, error: PeerError) -> None:
    if error.reason == "UNKNOWN_HANDLE":
        sequence.forget()
    else:
        sequence.limit(int(error.metadata.get("cached_length", 0)))


@contextmanager
def _client_span(name: str, parent: Span) -> Iterator[Span]:
    """A client span below ``parent``, ended on leaving; cheaper than making it the current one."""
    span = tracer.start_span(name, trace.set_span_in_context(parent), kind=SpanKind.CLIENT)
    try:
        yield span
    finally:
        span.end()
