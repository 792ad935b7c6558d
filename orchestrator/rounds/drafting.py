"""One draft service for all sessions that live on it: whether it may be asked, and requests to it
under the ratio test."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from orchestrator.errors import DraftLateError
from orchestrator.peers.breaker import Breaker
from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.draft_run import DraftRun, GuessTerms, HintListener
from orchestrator.peers.exchange import PeerTiming, Terms
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.sequence import PeerSequence, Position
from orchestrator.proposers.trials import SharedProcessors
from orchestrator.rounds.draft_figures import DraftFigures
from orchestrator.rounds.draft_request import DraftRequest, SessionDrafting, is_the_drafts_fault
from orchestrator.rounds.note import ExchangeNote, RoundNote
from slipstream.errors import SlipstreamError
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import SamplingRule
from slipstream.telemetry import names

log = logging.getLogger(__name__)

_MOST_PROBES = 16
"""That are not answered yet."""


class DraftSide:
    """One draft service, for all sessions that live on it."""

    def __init__(
        self,
        draft: DraftPeer,
        target: ModelInfo,
        *,
        lease_seconds: float,
        deadline_seconds: float,
        name: str = "",
        is_added: bool = False,
    ) -> None:
        """``name``: the host name that its address was found for; empty if it was given as it is.
        ``is_added``: an operator has added it."""
        self._draft = draft
        self.is_added = is_added
        self.name = name or draft.address
        self._target = target
        self._terms = Terms(target.tokenizer_fingerprint, "", lease_seconds)  # its weights may be any
        self._deadline = deadline_seconds
        self._breaker = Breaker()
        self._well = True
        self._answered_at = 0.0
        self._waited_for: set[DraftRequest] = set()
        self._probes: deque[DraftRequest] = deque()
        """Those that are not answered: a draft that is wedged answers none."""
        self._visitors: set[SessionDrafting] = set()
        """Sides of probes, which belong to no session: only we can close what they open."""
        self.fallbacks: Counter[str] = Counter()
        """Requests that the draft failed, by the reason."""
        self.recoveries = 0
        """Times that it answered again after that."""
        self.session_count = 0
        """Sessions that live on it, whether or not their turns run."""
        self.verified_count = self.accepted_count = 0
        """Numbers of the draft's tokens that were verified and accepted."""
        self.source_id: int | None = None
        """Id that the draft gives its hints; None before the first one."""
        self.figures = DraftFigures()
        """Figures of the draft's hints, turn by turn."""
        self.shared = SharedProcessors()
        """State that sessions share whose target computes on the draft's processors."""

    @property
    def address(self) -> str:
        """The address of the draft."""
        return self._draft.address

    @property
    def info(self) -> ModelInfo | None:
        """The model that the draft hosts; None before it has been reached."""
        return self._draft.info

    @property
    def fits(self) -> bool:
        """True if the draft has been reached, and its tokens are the target's."""
        return self.info is not None and self.info.tokenizer_fingerprint == self._target.tokenizer_fingerprint

    @property
    def proposes(self) -> bool:
        """True if the draft can be asked for a proposal, as the ratio test does."""
        return self.info is not None and self.fits and not self.info.hints_only

    @property
    def is_well(self) -> bool:
        """True if sessions may live on the draft."""
        return self.fits and self._breaker.is_closed

    def is_available(self, drafting: SessionDrafting) -> bool:
        """Return whether a session that lives on the draft may ask it now."""
        return self.is_well and drafting.breaker.is_closed

    @property
    def max_draft_length(self) -> int:
        """Most tokens that a request may ask for, and have in flight."""
        assert self.info is not None
        return self.info.max_draft_length

    def ask(
        self, drafting: SessionDrafting, tokens: Sequence[int], rule: SamplingRule, draft_length: int, note: RoundNote
    ) -> DraftRequest | None:
        """Ask for what comes after the committed ``tokens``. None if the draft is left alone; then
        see whether it is back, if it is time to.

        A newer request takes the place of an older one that is not answered yet, both here and at
        the draft.
        """
        if self.is_available(drafting):
            drafting.leave_request()
            drafting.request = self._request(drafting, tokens, rule, draft_length, note)
            return drafting.request
        self.probe(drafting, tokens, rule, note)
        return None

    def probe(self, drafting: SessionDrafting, tokens: Sequence[int], rule: SamplingRule, note: RoundNote) -> None:
        """If the draft is left alone and it is time to see whether it is back: one session asks,
        and waits for nothing."""
        breaker = drafting.breaker if self._breaker.is_closed else self._breaker
        if self.fits and breaker.is_half_open:
            breaker.record_probe()
            self._keep_probe(self._request(drafting, tokens, rule, 1, note, is_probe=True))

    def visit(self) -> None:
        """Ask for one token, for no session, if it is time to see whether the draft is back. For a
        draft from which all sessions have moved away."""
        if self.fits and self._breaker.is_half_open:
            self._breaker.record_probe()
            visitor = SessionDrafting()
            exchange = ExchangeNote(names.PROPOSE, self.address, time.monotonic())
            self._visitors.add(visitor)
            self._keep_probe(DraftRequest(self, visitor, (0,), SamplingRule(), 1, exchange, is_probe=True))

    def _keep_probe(self, probe: DraftRequest) -> None:
        self._probes.append(probe)
        if len(self._probes) > _MOST_PROBES:
            oldest = self._probes.popleft()
            oldest.withdraw()
            self._see_off(oldest)

    def _forget_probes(self) -> None:
        """The draft is back, and of earlier probes' answers some may be lost: the items have come,
        and no session would close what they opened."""
        while self._probes:
            self._see_off(self._probes.popleft())

    def _see_off(self, request: DraftRequest) -> None:
        """If it was a visitor's, its handle belongs to no session any more."""
        if request.drafting in self._visitors:
            self._visitors.discard(request.drafting)
            request.withdraw()
            self.release(request.drafting)

    def _request(
        self,
        drafting: SessionDrafting,
        tokens: Sequence[int],
        rule: SamplingRule,
        draft_length: int,
        note: RoundNote,
        *,
        is_probe: bool = False,
    ) -> DraftRequest:
        exchange = note.begin_propose(names.PROPOSE, self.address)
        exchange.draft_length = draft_length
        return DraftRequest(self, drafting, tokens, rule, draft_length, exchange, is_probe=is_probe)

    async def wait(self, request: DraftRequest) -> float:
        """Wait for a request's proposal, no longer than the deadline and no longer than the
        draft is well; returns the seconds waited."""
        started = time.monotonic()
        left = max(0.0, request.sent + self._deadline - started)
        late = asyncio.get_running_loop().call_later(left, request.give_up)
        self._waited_for.add(request)
        try:
            await request.done.wait()
        finally:
            self._waited_for.discard(request)
            late.cancel()
        return time.monotonic() - started

    def release(self, drafting: SessionDrafting) -> None:
        """Give a session's pages back."""
        drafting.released = True
        drafting.leave_request()
        self._draft.close_sequence(drafting.sequence)
        drafting.sequence.forget()

    def leave(self, drafting: SessionDrafting) -> None:
        """Give a session's pages back: another draft will be asked. This one may be well, and only
        its stream was lost."""
        self._draft.close_sequence(drafting.sequence)
        drafting.move()

    def send(
        self, request: DraftRequest, sequence: PeerSequence, position: Position, traceparent: str
    ) -> Callable[[], None]:
        """Put a request's item on the stream; returns what withdraws the request from it."""
        return self._draft.propose(
            sequence, self._terms, position, request.draft_length, request.rule, traceparent, request
        )

    def answered(self, request: DraftRequest, timing: PeerTiming | None) -> None:
        """The draft is there. If it answered in time, and no probe, it is well."""
        self._answered_at = time.monotonic()
        self._forget_probes()
        in_time = timing is not None and not request.is_probe and timing.round_trip <= self._deadline
        for breaker in (self._breaker, request.drafting.breaker):
            if in_time:
                breaker.record_success()
            else:
                breaker.record_answer()
        self._turn_well()
        self._see_off(request)

    def failed(self, request: DraftRequest, reason: str) -> None:
        """The draft is not: all leave it alone, and no round waits for it any longer. Where it is
        late and has answered others meanwhile it is late for one session, which leaves it alone by
        itself."""
        self._see_off(request)
        if reason == DraftLateError.reason and self._answered_at > request.sent:
            request.drafting.breaker.record_failure()
            return
        if not self._breaker.is_closed:
            return
        log.warning("the draft service at %s failed a round (%s): going on without it", self.address, reason)
        self._breaker.record_failure()
        self._well = False
        if reason == DraftLateError.reason:  # every other failure reaches the waiting rounds by itself
            for other in list(self._waited_for):
                other.give_up()

    def fell_back(self, reason: str) -> None:
        """Count a request that a round waited for and that failed: its turn goes on without it."""
        self.fallbacks[reason] += 1

    def verified(self, count: int, accepted_count: int) -> None:
        """Count the tokens of its proposals that a step verified, and those of them that were
        accepted."""
        self.verified_count += count
        self.accepted_count += accepted_count

    @property
    def deadline_seconds(self) -> float:
        """Longest time that a round waits for the draft."""
        return self._deadline

    @property
    def is_reachable(self) -> bool:
        """True if the draft reports that it serves."""
        return self._draft.reachable

    @property
    def trouble(self) -> str:
        """Reason that the draft does not serve, as far as it is known."""
        return self._draft.trouble

    @property
    def silence(self) -> float:
        """Seconds since it last answered any session."""
        return time.monotonic() - self._answered_at

    def may_start(self) -> bool:
        """Return whether a session may let the draft guess now. While all leave it alone, one
        session does so from time to time."""
        if not self.fits or not self.is_reachable:
            return False
        if self._breaker.is_half_open:
            self._breaker.record_probe()
            return True
        return self._breaker.is_closed

    def start_run(
        self,
        sequence: PeerSequence,
        position: Position,
        guess: GuessTerms,
        rule: SamplingRule,
        traceparent: str,
        listener: HintListener,
    ) -> DraftRun:
        """Let the draft guess on. ``listener`` gets its hints."""
        return self._draft.start_run(sequence, self._terms, position, guess, rule, traceparent, listener)

    def record_hints(self, source_id: int) -> None:
        """Record that the draft sends hints, under its id among the makers of hints."""
        self.source_id = source_id
        self._answered_at = time.monotonic()
        self._breaker.record_success()
        self._turn_well()

    def record_failure(self, error: SlipstreamError) -> bool:
        """Record that the draft has failed a session. Returns True if it is the draft's fault; then
        all sessions leave it alone for a while."""
        if isinstance(error, PeerError) and not is_the_drafts_fault(error):
            return False
        if self._breaker.is_closed:
            log.warning("the draft service at %s failed (%s): going on without it", self.address, error.reason)
        self._breaker.record_failure()
        self._well = False
        return True

    def _turn_well(self) -> None:
        if not self._well:
            self._well = True
            self.recoveries += 1
            log.info("the draft service at %s answers again", self.address)
