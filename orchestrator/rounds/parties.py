"""The parties of all sessions' rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.peers.model_info import ModelInfo
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.verification import VerifierSide


@dataclass(frozen=True, slots=True)
class Parties:
    """The peers, and the sessions whose turns run."""

    verifying: VerifierSide
    drafts: Drafts
    target: ModelInfo
    running: set[SessionRounds] = field(default_factory=set)
    """Sessions whose turns run."""
