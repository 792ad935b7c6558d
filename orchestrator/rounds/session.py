"""One session's side of the rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.peers.sequence import PeerSequence
from orchestrator.rounds.drafting import SessionDrafting


@dataclass(eq=False, slots=True)
class SessionRounds:
    """What outlives a session's turns: its sequence on the verifier, and its drafting with all that it has learnt."""

    id: str
    drafting: SessionDrafting
    verifier: PeerSequence = field(default_factory=PeerSequence)
    shared_length: int = 0
    """How many of the running turn's tokens were the session's before it: what is left of them if the turn is undone."""

    def begin_turn(self, shared_length: int, *, recompute: bool) -> None:
        """Only the first ``shared_length`` tokens are what they were; with ``recompute`` the verifier computes even these."""
        self.shared_length = shared_length
        self.verifier.limit(0 if recompute else shared_length)
        self.drafting.begin_turn(shared_length)

    def undo_turn(self) -> None:
        """The turn's tokens are the session's no more, and so is what the peers learnt from them."""
        self.begin_turn(self.shared_length, recompute=False)
