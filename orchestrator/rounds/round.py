"""One round: a proposal from the best source, the verifier's answer to it, and meanwhile the
draft's work on the next.

::

    committed tokens --> proposal: a branch that came true, an n-gram, or one that is waited for
                     --> the draft prepares for what may be answered        (if the plan overlaps)
                     --> verification: the accepted tokens and the next one
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from orchestrator.peers.exchange import PeerTiming, Verification
from orchestrator.rounds.draft_request import DraftRequest
from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.prompt_time import without_prompts
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.start import Parties, start_round
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.beginnings import waits_for_proposal
from orchestrator.speculation.continuations import Continuations
from orchestrator.speculation.plan import Overlap, RoundPlan, Why
from orchestrator.speculation.proposal import NOTHING_PROPOSED, Proposal, Source
from orchestrator.speculation.session import Candidate
from slipstream.agreed import ROUND_TAIL

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Choice:
    """The proposal of a round, and how it came about."""

    candidate: Candidate | None = None
    length: int = 0
    waited: float = 0.0
    awaited: PeerTiming | None = None
    hit: bool | None = None
    prepared: DraftRequest | None = None
    """The request whose branches one may have come true of."""
    rank: int | None = None
    """Of the branch that came true."""

    @property
    def proposal(self) -> Proposal:
        """What to verify."""
        return NOTHING_PROPOSED if self.candidate is None else self.candidate.proposal.cut(self.length)


class Round:
    """One round of one session, to be run once."""

    def __init__(
        self, parties: Parties, session: SessionRounds, tokens: list[int], terms: RoundTerms, room: int, note: RoundNote
    ) -> None:
        """After the committed ``tokens``, of which there may be ``room`` more."""
        self._parties = parties
        self._session = session
        self._drafting = session.drafting
        self._speculation = session.drafting.speculation
        self._tokens = tokens
        self._terms = terms
        self._room = room
        self._note = note
        self._start = start_round(parties, session, tokens, terms, room)
        self._plan = note.plan = self._start.plan
        self._pair, self._draft = self._start.pair, self._start.draft
        note.session_count = self._pair.session_count
        self._choice = _Choice()

    async def run(self) -> RoundResult:
        """Propose and verify. VerifierLostError, or a PeerError no retry mends; may be
        cancelled."""
        try:
            await self._choose()
            proposal = self._checked(self._choice.proposal)
            if self._plan.overlap is not Overlap.NONE and self._plan.draft_length:
                self._ask_ahead(proposal)
            request = self._drafting.request
            draft_rested = request is None or request.done.is_set()
            answer = await self._parties.verifying.verify(
                self._session.verifier, self._tokens, proposal, self._terms.rule, self._terms.logprobs, self._note
            )
        except BaseException:
            self._drafting.leave_request()
            raise
        self._learn(proposal, answer, draft_rested=draft_rested)
        return self._result(proposal, answer)

    async def _choose(self) -> None:
        """Find a proposal, wait for one if need be, and decide how much of it to verify."""
        choice, plan, ratios = self._choice, self._plan, self._terms.rule.draws_ratios
        if ratios:
            self._speculation.continuations = Continuations()
        if plan.draft_length:
            choice.candidate = self._speculation.from_draft(self._tokens)
        elif plan.why is Why.NO_DRAFT and self._draft is not None:
            self._draft.probe(self._drafting, self._tokens, self._terms.rule, self._start.regime, self._note)
        previous = self._drafting.request
        if plan.overlap is not Overlap.NONE and previous is not None and previous.ask.branch_count:
            choice.prepared = previous
            choice.hit, choice.rank = choice.candidate is not None, self._speculation.continuations.rank
        ngram = None
        if self._terms.speculation.takes_ngrams and not ratios:
            ngram = self._speculation.from_ngrams(self._tokens, self._start.longest)
        if choice.candidate is None and self._worth_waiting(ngram):
            await self._wait()
        if ngram is not None and (choice.candidate is None or ngram.expected > choice.candidate.expected):
            choice.candidate = ngram
        choice.length = self._length(choice)

    def _length(self, choice: _Choice) -> int:
        """How many of the chosen proposal's tokens to verify."""
        budget, asked = self._start.home.budget, self._terms.speculation
        if choice.candidate is None:
            return budget.allowed(self._session, ())
        length = min(len(choice.candidate.proposal), self._start.longest)
        if asked.draft_length is not None:
            return min(length, asked.draft_length)
        if self._terms.rule.draws_ratios:
            return length
        ending = choice.candidate.proposal.ending(self._terms.rule.ends)
        survivals = choice.candidate.survivals[:length]
        survivals = survivals[: self._speculation.best_length(survivals, self._plan.way, choice.waited, ending)]
        return budget.allowed(self._session, survivals, choice.waited, self._start.home_regime)

    def _worth_waiting(self, ngram: Candidate | None) -> bool:
        """Whether to wait for the draft now that nothing of its is there."""
        plan, pair, speculation = self._plan, self._pair, self._speculation
        if plan.draft_length == 0 or plan.overlap is Overlap.RUN_AHEAD:
            return False
        if plan.overlap is Overlap.ENUMERATE and self._drafting.request is None:
            acceptance = speculation.planner.acceptance
            prompt_length = len(self._tokens) - self._session.verifier.known_length
            return waits_for_proposal(pair, self._start.home, plan, acceptance, prompt_length)
        if ngram is None:
            return True
        expected = sum(speculation.planner.acceptance.survivals(plan.draft_length))
        waited = pair.drafting.at(plan.draft_length, pair.session_count, self._start.regime)
        at_once = speculation.rate(ngram.expected, len(ngram.proposal), 0.0)
        return speculation.rate(expected, plan.draft_length, waited) > at_once

    async def _wait(self) -> None:
        """For the branches that are still on their way, and if none of them came true for a plain
        proposal."""
        choice, plan, request = self._choice, self._plan, self._drafting.request
        if plan.overlap is Overlap.ENUMERATE and request is not None and not request.done.is_set():
            await self._wait_for(request)
            choice.hit, choice.rank = choice.candidate is not None, self._speculation.continuations.rank
        if choice.candidate is None:
            request = self._ask(RoundPlan(plan.recovery_length or plan.draft_length), NOTHING_PROPOSED)
            if request is not None:
                await self._wait_for(request)

    async def _wait_for(self, request: DraftRequest) -> None:
        assert self._draft is not None, "it has been asked"
        self._choice.waited += await self._draft.wait(request)
        self._choice.awaited = request.timing
        self._choice.candidate = self._speculation.from_draft(self._tokens)

    def _ask_ahead(self, proposal: Proposal) -> None:
        """Have the draft prepare for what verification will answer."""
        assert self._draft is not None, "a plan that overlaps has one"
        plan, most = self._plan, self._draft.max_draft_length
        # With nothing in flight the draft's first token stands for the target's.
        length = min(plan.draft_length + (not proposal.tokens), self._room - len(proposal), most)
        if length < 1 or len(proposal) > most:
            return
        last = self._drafting.request
        if plan.overlap is Overlap.RUN_AHEAD and last is not None and not last.done.is_set():
            step = self._pair.drafting.beside.at(last.ask.branch_count * self._pair.session_count)
            busy = step * (last.ask.draft_length + 1)
            if time.monotonic() - last.sent < busy:  # a newer request would take its place before it is answered
                return
        self._ask(RoundPlan(length, plan.overlap, plan.branch_count), proposal)

    def _ask(self, plan: RoundPlan, in_flight: Proposal) -> DraftRequest | None:
        assert self._draft is not None, "a plan with draft tokens has one"
        return self._draft.ask(
            self._drafting, self._tokens, self._terms.rule, plan, in_flight, self._start.regime, self._note
        )

    def _checked(self, proposal: Proposal) -> Proposal:
        """The part of a proposal that the target can check."""
        size = self._parties.target.vocabulary_size
        usable = proposal.usable(len(proposal), size)
        if self._terms.rule.draws_ratios and (fault := usable.fault(size)) is not None:
            log.warning("the draft service's distributions are wrong (%s): a round goes on without them", fault)
            self._drafting.failed = True
            return NOTHING_PROPOSED
        return usable

    def _learn(self, proposal: Proposal, answer: Verification, *, draft_rested: bool) -> None:
        """What the round shows. Others' rounds have begun and ended meanwhile: it is booked as what
        it was at its start."""
        pair, choice = self._pair, self._choice
        if answer.prefilled_count <= ROUND_TAIL:  # a prompt's forwards say nothing about a round's
            self._learn_costs(1 + len(proposal), answer.timing, draft_rested)
        hit, brought = self._known_hit(), 1.0
        if hit is not None and choice.prepared is not None:
            pair.hits.observe(choice.prepared.ask.branch_count, choice.rank)
        if choice.candidate is not None and proposal.tokens:
            if self._plan.rate is not None:
                self._note.predicted = choice.candidate.expected_of(len(proposal))
                brought += self._note.predicted
            self._speculation.observe(choice.candidate, len(proposal), answer.accepted_count)
            if proposal.source is Source.DRAFT and self._draft is not None:
                self._draft.verified(len(proposal), answer.accepted_count)
        if proposal.source is Source.DRAFT:  # the plan's, or nothing
            on_prompts = min(choice.waited, choice.awaited.prefill if choice.awaited else 0.0)
            seconds = time.monotonic() - self._start.time - answer.timing.prefill - on_prompts
            self._speculation.planner.observe(brought, max(0.0, seconds), hit)

    def _learn_costs(self, own: int, timing: PeerTiming, draft_rested: bool) -> None:
        address = self._session.verifier.address
        assert address is not None, "a verifier has answered"
        home = self._pair.verifiers[address]  # another one than at the start, if that one went away
        home.costs.observe(
            own,
            timing.step_token_count,
            timing.forward,
            timing.forward + without_prompts(timing)[1],
            self._start.home_regime,
            draft_rested=draft_rested,
            share=1 / max(1, home.budget.session_count),
            prompt_beside=timing.prefill > 0,
        )

    def _known_hit(self) -> bool | None:
        """Whether one of the branches came true that the draft had prepared; one that is late or
        failed has not been wrong."""
        prepared, rank = self._choice.prepared, self._choice.rank
        if self._plan.overlap is not Overlap.ENUMERATE or prepared is None:
            return None
        return rank is not None if rank is not None or prepared.timing is not None else None

    def _result(self, proposal: Proposal, answer: Verification) -> RoundResult:
        choice, plan = self._choice, self._plan
        return RoundResult(
            tokens=(*proposal.tokens[: answer.accepted_count], answer.next_token),
            proposal_length=len(proposal),
            source=proposal.source if proposal.tokens else None,
            accepted_count=answer.accepted_count,
            overlap=plan.overlap,
            asked=plan.draft_length > 0,
            prefilled_count=answer.prefilled_count,
            verify=answer.timing,
            waited=choice.waited,
            awaited=choice.awaited,
            drafted=self._drafting.take_finished(),
            hit=choice.hit,
            draft_failed=self._drafting.take_failed(),
            switched_off=plan.switches_off,
            margin=answer.margin,
            logprobs=answer.logprobs,
            prompt_logprobs=answer.tail_logprobs,
        )
