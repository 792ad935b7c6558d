"""Asking the draft service: for a proposal to wait for, or for branches while the target verifies.

A request never blocks: it leaves, and what comes back goes to the session's continuations whoever waits by then. Every request
states its position, so a lost handle and a cut cache are mended by stating it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from orchestrator.peers.breaker import Breaker
from orchestrator.peers.sequence import REASONS_TO_RESTATE, PeerSequence, Position
from orchestrator.peers.services import DraftPeer, ModelInfo, PeerTiming, Terms
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.plan import RoundPlan
from orchestrator.speculation.proposal import Branch, Proposal
from orchestrator.speculation.session import SessionSpeculation
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import MIN_TEMPERATURE, SamplingRule
from slipstream.telemetry import names
from slipstream.telemetry.tracing import traceparent_of, tracer

log = logging.getLogger(__name__)

_STALE = "STALE_ROUND"
_MAX_RESTATEMENTS = 3


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for. ``sharpening`` is the factor on the rule's temperature that is in ``rule`` already."""

    rule: SamplingRule
    in_flight: tuple[int, ...]
    draft_length: int
    branch_count: int
    sharpening: float


@dataclass(eq=False, slots=True)
class SessionDrafting:
    """One session's side of drafting: its sequence on the draft, the latest request, and what came of the last ones."""

    speculation: SessionSpeculation
    sequence: PeerSequence = field(default_factory=PeerSequence)
    request: DraftRequest | None = None
    finished: list[PeerTiming] = field(default_factory=list)
    failed: bool = False
    released: bool = False
    """Nothing may be asked any more."""

    def begin_turn(self, shared_length: int) -> None:
        """A new prompt, or a turn undone: only the first ``shared_length`` tokens are what they were."""
        self.sequence.limit(shared_length)
        self.speculation.begin_turn(shared_length)
        self.leave_request()
        self.request = None

    def leave_request(self) -> None:
        """Nobody waits for the latest request any more. What still comes of it is taken."""
        if self.request is not None:
            self.request.leave()

    def take_finished(self) -> list[PeerTiming]:
        """Timings of the requests answered since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def take_failed(self) -> bool:
        """Whether the draft failed since the last call."""
        failed, self.failed = self.failed, False
        return failed


class DraftRequest:
    """One request on its way: a sink for what the draft answers."""

    def __init__(self, side: DraftSide, drafting: SessionDrafting, tokens: Sequence[int], ask: Ask, span: Span) -> None:
        self.length = len(tokens)
        self.sent = time.monotonic()
        self.done = asyncio.Event()
        self.ask = ask
        self.timing: PeerTiming | None = None
        self._side = side
        self._drafting = drafting
        self._tokens = tokens
        self._continuations = drafting.speculation.continuations  # this turn's, which a late answer must not leave
        self._span = span
        self._restatements = 0
        self._branch_count = 0
        self._withdraw: Callable[[], None] = lambda: None
        self.start()

    def start(self) -> None:
        """Send the item."""
        sequence = self._drafting.sequence
        if self._drafting.released:
            self.leave()
            return
        position = sequence.position(self._tokens, self.length)
        self._withdraw = self._side.send(self, sequence, position, traceparent_of(self._span))

    def take(self, branches: list[Branch]) -> None:
        """Branches for the session's continuations."""
        for branch in branches:
            proposal = replace(branch.proposal, sharpening=self.ask.sharpening)
            known = replace(branch, proposal=proposal)
            self._continuations.add(self.length, self.ask.in_flight, known, self._branch_count)
            self._branch_count += 1

    def finish(self, timing: PeerTiming) -> None:
        """All has come."""
        self.timing = timing
        if self._continuations is self._drafting.speculation.continuations:  # another turn's tokens may be others
            self._drafting.sequence.learn(self.length)
        self._drafting.finished.append(timing)
        self._side.answered(timing, beside=self.ask.branch_count > 0)
        self.leave()

    def fail(self, error: PeerError) -> None:
        """Mend what stating the position again mends; else the draft has failed this request."""
        waited_for = not self.done.is_set()
        if waited_for and error.reason in REASONS_TO_RESTATE and self._restatements < _MAX_RESTATEMENTS:
            self._restatements += 1
            self._drafting.sequence.correct(error.reason, error.metadata)
            self.start()
            return
        if error.reason != _STALE:  # a newer request of our own took its place
            self._drafting.failed = True
            if waited_for:
                self._span.set_attribute(names.ERROR_REASON, error.reason)
            if _is_the_drafts_fault(error):
                self._side.failed(error.reason)
        self.leave()

    def give_up(self) -> None:
        """It is late: nobody waits for it any more."""
        self._span.set_attribute(names.ERROR_REASON, "DRAFT_LATE")
        self._drafting.failed = True
        self._side.failed("DRAFT_LATE")
        self._withdraw()
        self.leave()

    def leave(self) -> None:
        """It has ended, or nobody waits for it any more."""
        if not self.done.is_set():
            self.done.set()
            self._span.end()


class DraftSide:
    """The draft service for all sessions, if there is one."""

    def __init__(
        self,
        draft: DraftPeer | None,
        target: ModelInfo,
        pair: PairKnowledge,
        *,
        lease_seconds: float,
        deadline_seconds: float,
        sharpening: float | None,
    ) -> None:
        """``sharpening`` is a fixed factor; None learns it."""
        self._draft = draft
        self._terms = Terms(target.tokenizer_fingerprint, "", lease_seconds)  # its weights may be any
        self._pair = pair
        self._deadline = deadline_seconds
        self._sharpening = sharpening
        self._breaker = Breaker()

    @property
    def available(self) -> bool:
        """Whether there is a draft that may be asked now."""
        return self._draft is not None and self._draft.info is not None and self._breaker.allows

    @property
    def max_draft_length(self) -> int:
        """Most tokens that a request may ask for, and have in flight."""
        assert self._draft is not None and self._draft.info is not None
        return self._draft.info.max_draft_length

    def ask(
        self,
        drafting: SessionDrafting,
        tokens: Sequence[int],
        rule: SamplingRule,
        plan: RoundPlan,
        in_flight: Proposal,
        parent: Span,
    ) -> DraftRequest | None:
        """Ask for what comes after the committed ``tokens`` and what is ``in_flight``; None if the draft is not available.

        A newer request takes the place of an older one that is not answered yet, both here and at the draft.
        """
        last = drafting.request
        if last is not None and not last.done.is_set() and time.monotonic() - last.sent > self._deadline:
            last.give_up()
        if not self.available:
            return None
        span = tracer.start_span(names.PROPOSE, trace.set_span_in_context(parent), kind=SpanKind.CLIENT)
        span.set_attribute(names.DRAFT_LENGTH, plan.draft_length)
        span.set_attribute(names.IN_FLIGHT_LENGTH, len(in_flight))
        sharpening = self._factor(rule)
        sharp = rule
        if sharpening != 1:
            sharp = replace(rule, temperature=max(MIN_TEMPERATURE, rule.temperature * sharpening))
        ask = Ask(sharp, in_flight.tokens, plan.draft_length, plan.branch_count, sharpening)
        drafting.request = DraftRequest(self, drafting, tokens, ask, span)
        return drafting.request

    async def wait(self, request: DraftRequest) -> float:
        """Wait for a request's last branch, no longer than the deadline; returns the seconds waited."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, request.sent + self._deadline - started)):
                await request.done.wait()
        except TimeoutError:
            request.give_up()
        return time.monotonic() - started

    def release(self, drafting: SessionDrafting) -> None:
        """Give a session's pages back."""
        drafting.released = True
        drafting.leave_request()
        if self._draft is not None:
            self._draft.close_sequence(drafting.sequence)
            drafting.sequence.forget()

    def send(
        self, request: DraftRequest, sequence: PeerSequence, position: Position, traceparent: str
    ) -> Callable[[], None]:
        """Put a request's item on the stream; returns what withdraws the request from it."""
        assert self._draft is not None
        ask = request.ask
        return self._draft.propose(
            sequence,
            self._terms,
            position,
            ask.in_flight,
            ask.draft_length,
            ask.branch_count,
            ask.rule,
            traceparent,
            request,
        )

    def answered(self, timing: PeerTiming, *, beside: bool) -> None:
        """The draft is well; learn what it takes, alone or ``beside`` verification."""
        self._breaker.succeeded()
        rows, steps = timing.step_token_count, timing.forward_count
        share = 1 / self._pair.session_count
        self._pair.drafting.observe(
            rows, steps, timing.forward, timing.round_trip, self._pair.now, beside=beside, share=share
        )

    def failed(self, reason: str) -> None:
        """The draft is not: leave it alone for a while."""
        if self._breaker.allows:
            log.warning("the draft service failed a round (%s): going on without it", reason)
        self._breaker.failed()

    def _factor(self, rule: SamplingRule) -> float:
        if rule.temperature == 0 or rule.draws_ratios:
            return 1.0
        return self._pair.sharpening.factor(rule.temperature) if self._sharpening is None else self._sharpening


def _is_the_drafts_fault(error: PeerError) -> bool:
    """Whether other sessions should leave the draft alone too, or this is one session's trouble."""
    if error.reason == "QUEUE_FULL":
        return True
    return error.code in (Code.UNAVAILABLE, Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED, Code.DEADLINE_EXCEEDED)
