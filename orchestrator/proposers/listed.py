"""The proposers of a session. A new proposer is one file and one line here."""

from __future__ import annotations

from orchestrator.proposers.prediction import PredictionProposer
from orchestrator.proposers.proposer import Proposer


def proposers_of_session() -> list[Proposer]:
    """Return a new session's proposers."""
    return [PredictionProposer()]
