"""The proposers of a session. A new proposer is one file and one line here."""

from __future__ import annotations

from orchestrator.proposers.draft import DraftProposer
from orchestrator.proposers.prediction import PredictionProposer
from orchestrator.proposers.proposer import Proposer
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.drafts import Drafts


def proposers_of_session(drafts: Drafts, drafting: SessionDrafting, session_id: str) -> list[Proposer]:
    """Return a new session's proposers. ``drafting`` is its side at the draft."""
    return [
        DraftProposer(drafts, drafting, session_id),
        PredictionProposer(),
    ]
