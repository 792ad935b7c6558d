"""How a round starts: where, beside how many others, and by what plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from orchestrator.peers.model_info import ModelInfo
from orchestrator.rounds.drafting import DraftSide
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.rounds.verification import VerifierSide
from orchestrator.speculation.knowledge import PairKnowledge, VerifierKnowledge
from orchestrator.speculation.plan import PLAIN, Overlap, Regime, RoundPlan, Why

log = logging.getLogger(__name__)


_NO_DRAFT = replace(PLAIN, why=Why.NO_DRAFT)


@dataclass(frozen=True, slots=True)
class Parties:
    """Who takes part in all sessions' rounds, and what they know and share."""

    verifying: VerifierSide
    drafts: Drafts
    target: ModelInfo
    pair: PairKnowledge
    """Of sessions that no draft proposes for."""


class RoundStart(NamedTuple):
    """What a round is from its start on. While it runs others begin and end and change their way:
    what it shows is booked as what it was here."""

    time: float
    """Of the monotonic clock, in seconds."""
    longest: int
    """Tokens that a proposal may have."""
    home: VerifierKnowledge
    draft: DraftSide | None
    """That the session lives on."""
    pair: PairKnowledge
    plan: RoundPlan
    regime: Regime
    """Of the pair's rounds."""
    home_regime: Regime
    """Of the verifier's."""


def start_round(
    parties: Parties, session: SessionRounds, tokens: Sequence[int], terms: RoundTerms, room: int
) -> RoundStart:
    """Count a session where it lives, and plan its next round, in which at most ``room`` tokens are
    committed."""
    now = time.monotonic()
    longest = max(0, min(room - 1, parties.target.max_draft_length))  # one more is committed than proposed
    draft, pair, home = join_home(parties, session, tokens, terms, longest)
    home.begin_round(home.budget.session_count)
    pair.begin_round(pair.running_count)
    session.drafting.speculation.draw_at(terms.rule.temperature)
    plan = _plan(draft, session, terms, longest)
    session.drafting.speculation.planner.begin(plan)
    if plan.switches_off:
        told = {"session_id": session.id}
        log.info(
            "speculation does not pay for session %s: plain decoding, and a probe now and then", session.id, extra=told
        )
    elif plan.switches_on:
        log.info("speculation pays again for session %s", session.id, extra={"session_id": session.id})
    return RoundStart(now, longest, home, draft, pair, plan, pair.regime(plan.way), home.regime(plan.way))


def join_home(
    parties: Parties, session: SessionRounds, tokens: Sequence[int], terms: RoundTerms, longest: int = 0
) -> tuple[DraftSide | None, PairKnowledge, VerifierKnowledge]:
    """Count a session where it lives. Return its draft, and what is known of both."""
    draft = _draft(parties, session, terms, longest)
    pair = parties.pair if draft is None else draft.pair
    home = pair.verifiers[parties.verifying.home(session.verifier, tokens)]
    session.live_on(home, pair)
    return draft, pair, home


def _draft(parties: Parties, session: SessionRounds, terms: RoundTerms, longest: int) -> DraftSide | None:
    drafting = session.drafting
    if longest <= 0 or not terms.speculation.uses_draft:
        return parties.drafts.of(drafting)
    return parties.drafts.home(drafting, begins_turn=not session.is_running, stays=terms.rule.draws_ratios)


def _plan(draft: DraftSide | None, session: SessionRounds, terms: RoundTerms, longest: int) -> RoundPlan:
    asked, planner = terms.speculation, session.drafting.speculation.planner
    if longest <= 0 or not asked.uses_draft:
        return PLAIN
    if draft is None or not draft.is_available(session.drafting):
        return _NO_DRAFT
    longest = min(longest, draft.max_draft_length)
    if asked.draft_length is not None:
        return planner.fixed(min(asked.draft_length, longest), asked.overlap or Overlap.NONE)
    # Under the ratio test a proposal that comes or does not come by what it says would bias the
    # text.
    return planner.plan(longest, Overlap.NONE if terms.rule.draws_ratios else asked.overlap)
