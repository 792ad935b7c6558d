"""Plain decoding: the target continues by itself, and the orchestrator relays what it chooses."""

from __future__ import annotations

from orchestrator.peers.verifier_run import Part
from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.start import Parties, join_home
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.knowledge import VerifierKnowledge
from orchestrator.speculation.plan import Overlap
from orchestrator.speculation.proposal import NOTHING_PROPOSED
from slipstream.agreed import ROUND_TAIL


def is_relayed(terms: RoundTerms) -> bool:
    """Return whether a turn under these terms is decoded by a run. The ratio test's text depends on
    what is proposed, so its rounds are asked for one by one."""
    return terms.speculation.is_off and not terms.rule.draws_ratios


def _learn_steps(part: Part, home: VerifierKnowledge) -> None:
    """Learn what a step takes, unless prompts made steps longer."""
    timing = part.timing
    if timing.forward_count and timing.step_token_count and not timing.prefill and part.prefilled_count <= ROUND_TAIL:
        seconds, share = timing.forward / timing.forward_count, 1 / max(1, home.budget.session_count)
        home.costs.observe_steps(timing.step_token_count, seconds, home.regime(None), share)


async def next_part(
    parties: Parties, session: SessionRounds, tokens: list[int], terms: RoundTerms, room: int, note: RoundNote
) -> RoundResult:
    """Return what the target chooses after the committed ``tokens``, as the result of one round."""
    _, pair, home = join_home(parties, session, tokens, terms)
    note.session_count = pair.session_count
    part = await parties.verifying.next_part(session.run, tokens, terms, room, note)
    _learn_steps(part, home)
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
