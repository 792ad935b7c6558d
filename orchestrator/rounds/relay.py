"""Plain decoding: the target continues by itself, and the orchestrator relays what it chooses."""

from __future__ import annotations

from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.start import Parties, join_home
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.plan import Overlap
from orchestrator.speculation.proposal import NOTHING_PROPOSED


def is_relayed(terms: RoundTerms) -> bool:
    """Return whether a turn under these terms is decoded by a run. The ratio test's text depends on
    what is proposed, so its rounds are asked for one by one."""
    return terms.speculation.is_off and not terms.rule.draws_ratios


async def next_part(
    parties: Parties, session: SessionRounds, tokens: list[int], terms: RoundTerms, room: int, note: RoundNote
) -> RoundResult:
    """Return what the target chooses after the committed ``tokens``, as the result of one round."""
    join_home(parties, session, tokens, terms)
    note.session_count = session.pair.session_count if session.pair is not None else 1
    part = await parties.verifying.next_part(session.run, tokens, terms, room, note)
    return RoundResult(
        tokens=part.tokens,
        proposal=NOTHING_PROPOSED,
        accepted_count=0,
        overlap=Overlap.NONE,
        asked=False,
        prefilled_count=part.prefilled_count,
        verify=part.timing,
        waited=0.0,
        awaited=None,
        drafted=session.drafting.take_finished(),
        hit=None,
        draft_failed=session.drafting.take_failed(),
        switched_off=False,
        margin=part.margin,
        logprobs=part.logprobs,
        prompt_logprobs=part.tail_logprobs,
    )
