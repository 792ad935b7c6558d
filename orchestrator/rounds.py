"""One round: a proposal from the draft if it can be had, the verifier's answer to it, and what both peers hold now.

Every request states its position, so a lost handle, a cut cache, a lost stream and a restarted service are all mended
the same way: state the position again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from orchestrator.errors import VerifierLostError
from orchestrator.peer_sequence import PeerSequence
from orchestrator.peers import DraftPeer, ModelPeer, PeerTiming, Proposal, Verification, VerifierPeer
from orchestrator.policy import DraftBreaker
from orchestrator.store import SessionRecord
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import SamplingRule
from slipstream.telemetry import names
from slipstream.telemetry.tracing import traceparent_of, tracer

log = logging.getLogger(__name__)

_REASONS_TO_RESTATE = ("UNKNOWN_HANDLE", "SEQUENCE_TOO_SHORT")
_MAX_RESTATEMENTS = 3
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


class Rounds:
    """Runs rounds for all sessions over one verifier and at most one draft."""

    def __init__(
        self,
        verifier: VerifierPeer,
        draft: DraftPeer | None,
        *,
        fingerprint: str,
        lease_seconds: float,
        draft_deadline_seconds: float,
        verifier_patience_seconds: float,
    ) -> None:
        self.verifier = verifier
        self.draft = draft
        self._fingerprint = fingerprint
        self._lease_seconds = lease_seconds
        self._draft_deadline = draft_deadline_seconds
        self._patience = verifier_patience_seconds
        self._breaker = DraftBreaker()

    async def run(self, record: SessionRecord, rule: SamplingRule, draft_length: int, span: Span) -> Round:
        """Propose and verify after the session's committed tokens. VerifierLostError, or a PeerError no retry mends."""
        tokens = record.session.tokens
        length = len(tokens)
        if draft_length:
            await self._open_both(record)
        proposal, draft_failed = await self._propose(record.draft, tokens, draft_length, rule, span)
        proposed = self._usable(proposal.tokens, draft_length) if proposal else ()
        answer = await self._verify(record.verifier, tokens, proposed, rule, span)
        record.verifier.learn(length + answer.accepted_count)
        if proposal is not None:
            # The draft chose its last token but never appended it.
            record.draft.learn(length + min(answer.accepted_count, len(proposal.tokens) - 1))
        return Round(
            tokens=(*proposed[: answer.accepted_count], answer.next_token),
            draft_length=len(proposed),
            accepted_count=answer.accepted_count,
            prefilled_count=answer.prefilled_count,
            verify=answer.timing,
            propose=proposal.timing if proposal else None,
            draft_failed=draft_failed,
        )

    def release(self, record: SessionRecord) -> None:
        """Give a session's pages back on both peers."""
        self.verifier.close_sequence(record.verifier.handle)
        record.verifier.forget()
        if self.draft is not None:
            self.draft.close_sequence(record.draft.handle)
            record.draft.forget()

    def _usable(self, proposed: tuple[int, ...], draft_length: int) -> tuple[int, ...]:
        """The part of a proposal that the target can check: its vocabulary may be the smaller one."""
        assert self.verifier.info is not None
        vocabulary_size = self.verifier.info.vocabulary_size
        return tuple(itertools.takewhile(lambda token: 0 <= token < vocabulary_size, proposed[:draft_length]))

    async def _propose(
        self, sequence: PeerSequence, tokens: Sequence[int], draft_length: int, rule: SamplingRule, parent: Span
    ) -> tuple[Proposal | None, bool]:
        """A proposal and False; None and whether that was the draft's failure."""
        draft = self.draft
        if draft is None or draft.info is None or draft_length == 0 or not self._breaker.allows:
            return None, False
        with _client_span(names.PROPOSE, parent) as span:
            span.set_attribute(names.DRAFT_LENGTH, draft_length)
            try:
                async with asyncio.timeout(self._draft_deadline):
                    proposal = await self._propose_once(draft, sequence, tokens, draft_length, rule, span)
            except (PeerError, TimeoutError) as error:
                reason = error.reason if isinstance(error, PeerError) else "DRAFT_LATE"
                span.set_attribute(names.ERROR_REASON, reason)
                if _is_the_drafts_fault(error):
                    self._breaker.failed()
                    log.warning("the draft service failed a round (%s): going on without it", reason)
                return None, True
        self._breaker.succeeded()
        return proposal, False

    async def _propose_once(
        self,
        draft: DraftPeer,
        sequence: PeerSequence,
        tokens: Sequence[int],
        draft_length: int,
        rule: SamplingRule,
        span: Span,
    ) -> Proposal:
        for attempt in range(_MAX_RESTATEMENTS):
            try:
                handle = await self._handle_on(draft, sequence)
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
        proposal: Sequence[int],
        rule: SamplingRule,
        parent: Span,
    ) -> Verification:
        """The verifier's answer, asked for again as long as patience lasts."""
        give_up = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        restatements = 0
        with _client_span(names.VERIFY, parent) as span:
            while True:
                try:
                    handle = await self._handle_on(self.verifier, sequence)
                    position = sequence.position(tokens)
                    return await self.verifier.verify(
                        handle, sequence.next_round(), position, proposal, rule, traceparent_of(span)
                    )
                except PeerError as error:
                    if error.reason in _REASONS_TO_RESTATE and restatements < _MAX_RESTATEMENTS:
                        restatements += 1
                        _restate(sequence, error)
                        continue
                    span.set_attribute(names.ERROR_REASON, error.reason)
                    if error.code not in (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED):
                        raise
                    if time.monotonic() + pause > give_up:
                        if error.code is Code.RESOURCE_EXHAUSTED:
                            raise
                        raise VerifierLostError(
                            f"the verifier at {self.verifier.address} has been away for {self._patience:g} s: {error}"
                        ) from error
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                restatements = 0

    async def _open_both(self, record: SessionRecord) -> None:
        """Open what is not open yet in one round trip instead of two. Failures show, and are mended, further on."""
        if self.draft is not None and self.draft.info is not None and self._breaker.allows:
            peers = ((self.draft, record.draft), (self.verifier, record.verifier))
            missing = [self._handle_on(peer, sequence) for peer, sequence in peers if sequence.handle is None]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._draft_deadline):
                    await asyncio.gather(*missing, return_exceptions=True)

    async def _handle_on(self, peer: ModelPeer, sequence: PeerSequence) -> str:
        if sequence.handle is None:
            sequence.handle = await peer.open_sequence(self._fingerprint, self._lease_seconds)
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
