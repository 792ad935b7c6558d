"""One session's side of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.peers.sequence import PeerSequence
from orchestrator.proposers.proposer import Proposer
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.session_run import SessionRun


@dataclass(eq=False, slots=True)
class SessionRounds:
    """State that outlives a session's turns: its sequence on the verifier, and its side of
    drafting."""

    id: str
    drafting: SessionDrafting
    """The session's side at its first draft, the only one under the ratio test."""
    verifier: PeerSequence = field(default_factory=PeerSequence)
    shared_length: int = 0
    """Tokens that the session had before the running turn, and keeps if the turn is undone."""

    proposers: Sequence[Proposer] = ()
    """The makers of hints for its runs."""

    run: SessionRun = field(init=False)
    """The run by which the verifier continues the session's tokens, if one does."""

    def __post_init__(self) -> None:
        self.run = SessionRun(self.verifier, self.proposers)

    @property
    def draftings(self) -> tuple[SessionDrafting, ...]:
        """The session's sides at all its drafts."""
        return (self.drafting, *self.drafting.beside)

    def begin_turn(self, shared_length: int, *, recompute: bool) -> None:
        """Only the first ``shared_length`` tokens are what they were; with ``recompute`` the
        verifier computes even these."""
        self.shared_length = shared_length
        self.verifier.limit(0 if recompute else shared_length)
        for drafting in self.draftings:
            drafting.begin_turn(shared_length)

    def undo_turn(self) -> None:
        """The turn's tokens are the session's no more, and so is what the peers learnt from
        them."""
        self.begin_turn(self.shared_length, recompute=False)
