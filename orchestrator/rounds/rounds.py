"""One round: a proposal from whoever has the best, the verifier's answer to it, and meanwhile the draft's work on the next.

::

    committed tokens --> proposal: a branch that came true, an n-gram, or one that is waited for
                     --> the draft prepares for what may be answered        (if the plan overlaps)
                     --> verification: the accepted tokens and the next one
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from opentelemetry.trace import Span

from orchestrator.peers.services import ModelInfo, PeerTiming, Verification
from orchestrator.rounds.drafting import DraftRequest, DraftSession, DraftSide
from orchestrator.rounds.verifying import VerifierSide
from orchestrator.sessions.settings import ResolvedTurn
from orchestrator.sessions.store import SessionRecord
from orchestrator.speculation.beginnings import waits_for_proposal
from orchestrator.speculation.budget import VerifyBudget
from orchestrator.speculation.continuations import Continuations
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.plan import PLAIN, Overlap, Regime, RoundPlan
from orchestrator.speculation.proposal import NOTHING_PROPOSED, Proposal, Source
from orchestrator.speculation.session import Candidate
from slipstream.sampling.outcome import LogprobRequest, TokenLogprobs

log = logging.getLogger(__name__)

_ROUND_TAIL = 8
"""Tail tokens that a round may have: a prompt has more."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round brought. ``tokens`` are ready to commit: the accepted ones and the next one.

    ``asked`` says whether the draft had a part in it. ``waited`` is how long it waited for its proposal, in seconds,
    and ``awaited`` the timing of the request it waited for. ``switched_off`` says that the draft is left out from here
    on. ``drafted`` are the timings of all requests to the draft that were answered since the last round. ``hit`` says
    whether the draft had prepared for what the last verification answered; None if it was not asked to.
    """

    tokens: tuple[int, ...]
    proposal: Proposal
    accepted_count: int
    overlap: Overlap
    asked: bool
    prefilled_count: int
    verify: PeerTiming
    waited: float
    awaited: PeerTiming | None
    drafted: list[PeerTiming]
    hit: bool | None
    draft_failed: bool
    switched_off: bool
    logprobs: tuple[TokenLogprobs, ...]
    """One for each of ``tokens``, if asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...]
    """Of the prompt's tokens from the second on, if asked for."""


@dataclass(slots=True)
class _Choice:
    """The proposal of a round, and how it came about."""

    candidate: Candidate | None = None
    length: int = 0
    waited: float = 0.0
    awaited: PeerTiming | None = None
    hit: bool | None = None
    rank: int | None = None
    """Of the branch that came true."""

    @property
    def proposal(self) -> Proposal:
        """What to verify."""
        return NOTHING_PROPOSED if self.candidate is None else self.candidate.proposal.cut(self.length)


class Rounds:
    """Runs rounds for all sessions over the verifiers of one target and at most one draft."""

    def __init__(self, verifying: VerifierSide, drafting: DraftSide, target: ModelInfo, pair: PairKnowledge) -> None:
        self.pair = pair
        self._verifying = verifying
        self._drafting = drafting
        self._target = target
        self._budget = VerifyBudget(pair.verify)

    async def run(
        self, record: SessionRecord, turn: ResolvedTurn, room: int, logprobs: LogprobRequest | None, span: Span
    ) -> Round:
        """Propose and verify after the session's committed tokens, of which there may be ``room`` more.

        VerifierLostError, or a PeerError no retry mends.
        """
        tokens, session = record.session.tokens, record.draft
        started = time.monotonic()
        longest = max(0, min(room - 1, self._target.max_draft_length))  # a round commits one more than it proposes
        self._budget.join(session)
        self.pair.begin_round(self._budget.session_count)
        plan = self._plan(session, turn, longest)
        self.pair.now = self.pair.regime(plan.way)
        if plan.switches_off:
            log.info(
                "speculation does not pay for session %s: plain decoding, and a probe now and then", record.session.id
            )
        prompt_length = len(tokens) - record.verifier.known_length
        choice = await self._choose(session, tokens, turn, plan, longest, prompt_length, span)
        proposal = self._checked(choice.proposal, turn, session)
        ahead = None
        if plan.overlap is not Overlap.NONE and plan.draft_length:
            ahead = self._ask_ahead(session, tokens, turn, plan, proposal, room, span)
        answer = await self._verifying.verify(record.verifier, tokens, proposal, turn.rule, logprobs, span)
        self._learn(session, choice, proposal, answer, turn, self.pair.regime(plan.way), draft_rested=ahead is None)
        if proposal.source is Source.DRAFT:  # the plan's, or nothing
            on_prompts = answer.timing.prefill + min(choice.waited, choice.awaited.prefill if choice.awaited else 0.0)
            elapsed = time.monotonic() - started - on_prompts
            session.speculation.planner.observe(plan, answer.accepted_count + 1, max(0.0, elapsed))
        return Round(
            tokens=(*proposal.tokens[: answer.accepted_count], answer.next_token),
            proposal=proposal,
            accepted_count=answer.accepted_count,
            overlap=plan.overlap,
            asked=plan.draft_length > 0,
            prefilled_count=answer.prefilled_count,
            verify=answer.timing,
            waited=choice.waited,
            awaited=choice.awaited,
            drafted=session.take_finished(),
            hit=choice.hit,
            draft_failed=session.take_failed(),
            switched_off=plan.switches_off,
            logprobs=answer.logprobs,
            prompt_logprobs=answer.tail_logprobs,
        )

    def end_turn(self, record: SessionRecord) -> None:
        """A session's turn has ended: it has no claim on the verifiers' time any more."""
        self._budget.leave(record.draft)
        turn = record.session.turn
        record.draft.speculation.end_turn(record.session.tokens, turn.generated_count if turn is not None else 0)

    def release(self, record: SessionRecord) -> None:
        """Give a session's pages back on both peers."""
        self._verifying.release(record.verifier)
        self._drafting.release(record.draft)

    def _plan(self, session: DraftSession, turn: ResolvedTurn, longest: int) -> RoundPlan:
        asked, planner = turn.speculation, session.speculation.planner
        if longest <= 0 or not asked.uses_draft or not self._drafting.available:
            return PLAIN
        longest = min(longest, self._drafting.max_draft_length)
        if asked.draft_length is not None:
            return planner.fixed(min(asked.draft_length, longest), asked.overlap or Overlap.NONE)
        # Under the ratio test a proposal that comes or does not come by what it says would bias the text.
        return planner.plan(longest, Overlap.NONE if turn.rule.draws_ratios else asked.overlap)

    async def _choose(
        self,
        session: DraftSession,
        tokens: list[int],
        turn: ResolvedTurn,
        plan: RoundPlan,
        longest: int,
        prompt_length: int,
        span: Span,
    ) -> _Choice:
        speculation, ratios = session.speculation, turn.rule.draws_ratios
        if ratios:
            speculation.continuations = Continuations()
        choice = _Choice(candidate=speculation.from_draft(tokens) if plan.draft_length else None)
        previous = session.request
        if plan.overlap is not Overlap.NONE and previous is not None and previous.ask.branch_count:
            choice.hit, choice.rank = choice.candidate is not None, speculation.continuations.rank
        ngram = None
        if turn.speculation.takes_ngrams and not ratios:
            ngram = speculation.from_ngrams(tokens, longest)
        if choice.candidate is None and self._worth_waiting(session, plan, ngram, prompt_length):
            await self._wait(session, tokens, turn, plan, choice, span)
        if ngram is not None and (choice.candidate is None or ngram.expected > choice.candidate.expected):
            choice.candidate = ngram
        if choice.candidate is None:
            self._budget.allowed(session, ())
            return choice
        choice.length = min(len(choice.candidate.proposal), longest)
        if turn.speculation.is_adaptive and not ratios:
            survivals = choice.candidate.survivals[:longest]
            choice.length = speculation.best_length(survivals, plan.way, choice.waited)
            survivals, regime = survivals[: choice.length], self.pair.regime(plan.way)
            choice.length = self._budget.allowed(session, survivals, choice.waited, regime)
        elif turn.speculation.draft_length is not None:
            choice.length = min(choice.length, turn.speculation.draft_length)
        return choice

    def _worth_waiting(
        self, session: DraftSession, plan: RoundPlan, ngram: Candidate | None, prompt_length: int
    ) -> bool:
        """Whether to wait for the draft now that nothing of its is there."""
        if plan.draft_length == 0 or plan.overlap is Overlap.RUN_AHEAD:
            return False
        if plan.overlap is Overlap.ENUMERATE and session.request is None:
            survivals = session.speculation.planner.acceptance.survivals(plan.draft_length)
            return waits_for_proposal(self.pair, plan, survivals, prompt_length)
        if ngram is None:
            return True
        speculation, pair = session.speculation, self.pair
        expected = sum(speculation.planner.acceptance.survivals(plan.draft_length))
        waited = pair.drafting.at(plan.draft_length, pair.session_count, pair.regime(plan.way))
        at_once = speculation.rate(ngram.expected, len(ngram.proposal), 0.0)
        return speculation.rate(expected, plan.draft_length, waited) > at_once

    async def _wait(
        self,
        session: DraftSession,
        tokens: list[int],
        turn: ResolvedTurn,
        plan: RoundPlan,
        choice: _Choice,
        span: Span,
    ) -> None:
        """For the branches that are still on their way, and if none of them came true for a plain proposal."""
        request = session.request
        if plan.overlap is Overlap.ENUMERATE and request is not None and not request.done.is_set():
            choice.waited += await self._drafting.wait(request)
            choice.awaited = request.timing
            choice.candidate = session.speculation.from_draft(tokens)
            choice.hit, choice.rank = choice.candidate is not None, session.speculation.continuations.rank
        if choice.candidate is None:
            plain = RoundPlan(plan.recovery_length or plan.draft_length)
            request = self._drafting.ask(session, tokens, turn.rule, plain, NOTHING_PROPOSED, span)
            if request is not None:
                choice.waited += await self._drafting.wait(request)
                choice.awaited = request.timing
                choice.candidate = session.speculation.from_draft(tokens)

    def _ask_ahead(
        self,
        session: DraftSession,
        tokens: list[int],
        turn: ResolvedTurn,
        plan: RoundPlan,
        proposal: Proposal,
        room: int,
        span: Span,
    ) -> DraftRequest | None:
        """Have the draft prepare for what verification will answer."""
        # With nothing in flight the draft's first token stands for the target's.
        length = min(plan.draft_length + (not proposal.tokens), room - len(proposal), self._drafting.max_draft_length)
        if length < 1 or len(proposal) > self._drafting.max_draft_length:
            return None
        last = session.request
        if plan.overlap is Overlap.RUN_AHEAD and last is not None and not last.done.is_set():
            step = self.pair.drafting.beside.at(last.ask.branch_count * self.pair.session_count)
            busy = step * (last.ask.draft_length + 1)
            if time.monotonic() - last.sent < busy:  # a newer request would take its place before it is answered
                return None
        return self._drafting.ask(
            session, tokens, turn.rule, RoundPlan(length, plan.overlap, plan.branch_count), proposal, span
        )

    def _checked(self, proposal: Proposal, turn: ResolvedTurn, session: DraftSession) -> Proposal:
        size = self._target.vocabulary_size
        usable = proposal.usable(len(proposal), size)
        if turn.rule.draws_ratios and (fault := usable.fault(size)) is not None:
            log.warning("the draft service's distributions are wrong (%s): a round goes on without them", fault)
            session.failed = True
            return NOTHING_PROPOSED
        return usable

    def _learn(
        self,
        session: DraftSession,
        choice: _Choice,
        proposal: Proposal,
        answer: Verification,
        turn: ResolvedTurn,
        regime: Regime,
        *,
        draft_rested: bool,
    ) -> None:
        timing, speculation = answer.timing, session.speculation
        if answer.prefilled_count <= _ROUND_TAIL:  # a prompt's forwards say nothing about a round's
            own = 1 + len(proposal)
            self.pair.verify.observe(
                own,
                timing.step_token_count,
                timing.forward,
                timing.round_trip,
                regime,
                draft_rested=draft_rested,
                share=1 / self.pair.session_count,
            )
        if choice.hit is not None:
            asked = session.request.ask.branch_count if session.request is not None else 0
            self.pair.hits.observe(asked, choice.rank)
        if choice.candidate is None or not proposal.tokens:
            return
        speculation.observe(choice.candidate, len(proposal), answer.accepted_count)
        if proposal.source is Source.DRAFT:
            self.pair.sharpening.observe(
                turn.rule.temperature, proposal.sharpening, len(proposal), answer.accepted_count
            )
