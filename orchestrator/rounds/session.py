"""One session's side of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.peers.sequence import PeerSequence
from orchestrator.proposers.proposer import Proposer
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.session_run import SessionRun
from orchestrator.speculation.knowledge import PairKnowledge, VerifierKnowledge


@dataclass(eq=False, slots=True)
class SessionRounds:
    """What outlives a session's turns: its sequence on the verifier, and its drafting with all that
    it has learnt."""

    id: str
    drafting: SessionDrafting
    verifier: PeerSequence = field(default_factory=PeerSequence)
    home: VerifierKnowledge | None = None
    """What is known of the verifier that the running turn's rounds go to."""
    pair: PairKnowledge | None = None
    """What is known of it with the draft that proposes for them."""
    shared_length: int = 0
    """How many of the running turn's tokens were the session's before it: what is left of them if
    the turn is undone."""

    proposers: Sequence[Proposer] = ()
    """The makers of hints for its runs."""

    run: SessionRun = field(init=False)
    """The run by which the verifier continues the session's tokens, if one does."""

    def __post_init__(self) -> None:
        self.run = SessionRun(self.verifier, self.proposers)

    def begin_turn(self, shared_length: int, *, recompute: bool) -> None:
        """Only the first ``shared_length`` tokens are what they were; with ``recompute`` the
        verifier computes even these."""
        self.shared_length = shared_length
        self.verifier.limit(0 if recompute else shared_length)
        self.drafting.begin_turn(shared_length)

    @property
    def is_running(self) -> bool:
        """Whether a turn's first round has begun."""
        return self.home is not None

    def live_on(self, home: VerifierKnowledge, pair: PairKnowledge) -> None:
        """The next round goes to this verifier and this pair's draft, whose others count the
        session from here on."""
        if home is not self.home or pair is not self.pair:
            self.leave_home()
            self.home, self.pair = home, pair
            self.drafting.speculation.draft_with(pair)
            self.drafting.speculation.live_on(home)
        home.budget.join(self)
        pair.join(self)

    def leave_home(self) -> None:
        """The session has no claim on a verifier's time any more, nor on a draft's."""
        if self.home is not None:
            self.home.budget.leave(self)
            self.home = None
        if self.pair is not None:
            self.pair.leave(self)
            self.pair = None

    def undo_turn(self) -> None:
        """The turn's tokens are the session's no more, and so is what the peers learnt from
        them."""
        self.begin_turn(self.shared_length, recompute=False)
