"""One round of the ratio test: ask the draft, wait for its proposal, have it verified.

The text depends on what is proposed. So the target does not continue by itself, the length is
fixed, and no n-gram is proposed.
"""

from __future__ import annotations

import logging

from orchestrator.rounds.draft_request import DraftRequest
from orchestrator.rounds.drafting import DraftSide
from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.parties import Parties
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.proposal import NOTHING_PROPOSED, Proposal, Source

log = logging.getLogger(__name__)

_USUAL_LENGTH = 4
"""Draft tokens of a round if the turn leaves the number open."""


async def run_ratio_round(
    parties: Parties, session: SessionRounds, tokens: list[int], terms: RoundTerms, room: int, note: RoundNote
) -> RoundResult:
    """Propose and verify after the committed ``tokens``, of which there may be ``room`` more.
    VerifierLostError, or a PeerError no retry mends; may be cancelled."""
    draft = _join_draft(parties, session, terms)
    note.session_count = len(parties.running)
    drafting, request, waited = session.drafting, None, 0.0
    length = _length(draft, terms, min(room - 1, parties.target.max_draft_length))
    try:
        if draft is not None and length > 0:
            request = draft.ask(drafting, tokens, terms.rule, length, note)
        if draft is not None and request is not None:
            waited = await draft.wait(request)
        proposal = _usable(request, length, parties.target.vocabulary_size)
        answer = await parties.verifying.verify(session.verifier, tokens, proposal, terms.rule, terms.logprobs, note)
    except BaseException:
        drafting.leave_request()
        raise
    if draft is not None and proposal.tokens:
        draft.verified(len(proposal), answer.accepted_count)
    return RoundResult(
        tokens=(*proposal.tokens[: answer.accepted_count], answer.next_token),
        proposal_length=len(proposal),
        source=Source.DRAFT if proposal.tokens else None,
        accepted_count=answer.accepted_count,
        prefilled_count=answer.prefilled_count,
        verify=answer.timing,
        waited=waited,
        awaited=None if request is None else request.timing,
        drafted=drafting.take_finished(),
        draft_failed=drafting.take_failed(),
        switched_off=False,
        margin=answer.margin,
        logprobs=answer.logprobs,
        prompt_logprobs=answer.tail_logprobs,
        draft=parties.drafts.fingerprint_of(drafting),
    )


def _join_draft(parties: Parties, session: SessionRounds, terms: RoundTerms) -> DraftSide | None:
    """Count a session as running, and return the draft that it lives on. One that wants to draft
    and has none is given one."""
    begins_turn = session not in parties.running
    parties.running.add(session)
    if not terms.speculation.uses_draft:
        return parties.drafts.of(session.drafting)
    return parties.drafts.home(session.drafting, begins_turn=begins_turn, stays=True)


def _length(draft: DraftSide | None, terms: RoundTerms, longest: int) -> int:
    """Return how many tokens to ask the draft for, at most ``longest``: one more is committed than
    proposed. 0 for none."""
    asked = terms.speculation
    if draft is None or not draft.proposes or not asked.uses_draft:
        return 0
    wanted = _USUAL_LENGTH if asked.draft_length is None else asked.draft_length
    return min(wanted, longest, draft.max_draft_length)


def _usable(request: DraftRequest | None, length: int, vocabulary_size: int) -> Proposal:
    """Return what the target can check of the answer."""
    if request is None or request.proposal is None:
        return NOTHING_PROPOSED
    proposal = request.proposal.usable(length, vocabulary_size)
    if (fault := proposal.fault(vocabulary_size)) is not None:
        log.warning("the draft service's distributions are wrong (%s): a round goes on without them", fault)
        request.drafting.failed = True
        return NOTHING_PROPOSED
    return proposal
