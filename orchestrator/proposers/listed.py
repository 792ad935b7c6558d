"""The proposers of a session. A new proposer is one file and one line here."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.proposers.draft import DraftProposer
from orchestrator.proposers.prediction import PredictionProposer
from orchestrator.proposers.proposer import Proposer
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.drafts import Drafts


def proposers_of_session(drafts: Drafts, draftings: Sequence[SessionDrafting], session_id: str) -> list[Proposer]:
    """Return a new session's proposers. ``draftings`` are its sides at its drafts."""
    return [
        *(DraftProposer(drafts, drafting, session_id) for drafting in draftings),
        PredictionProposer(),
    ]
