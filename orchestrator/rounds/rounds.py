"""The rounds of all sessions: the door of this room.

::

    open --> begin_turn --> run --> run .. --> end_turn --> begin_turn .. --> release
"""

from __future__ import annotations

from orchestrator.peers.model_info import ModelInfo
from orchestrator.proposers.listed import proposers_of_session
from orchestrator.rounds.capacity import Capacity
from orchestrator.rounds.draft_request import draftings_of
from orchestrator.rounds.drafts import Drafts, place_of
from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.parties import Parties
from orchestrator.rounds.ratio_round import run_ratio_round
from orchestrator.rounds.relay import is_relayed, next_result
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.rounds.verification import VerifierSide
from orchestrator.speculation.proposal import Source


class Rounds:
    """Runs rounds for all sessions over the verifiers of one target and its drafts, if there are
    any."""

    def __init__(
        self, verifying: VerifierSide, drafts: Drafts, target: ModelInfo, *, drafts_per_session: int = 1
    ) -> None:
        """``drafts_per_session``: drafts of different weights that each session asks, if there are
        so many."""
        self._drafts_per_session = drafts_per_session
        self.capacity = Capacity(verifying.verifiers)
        self._parties = Parties(verifying, drafts, target)

    def open(self, session_id: str) -> SessionRounds:
        """A new session's side. It takes up nothing on the peers before its first round."""
        draftings = draftings_of(place_of(session_id), self._drafts_per_session)
        proposers = proposers_of_session(self._parties.drafts, draftings, session_id)
        return SessionRounds(session_id, draftings[0], proposers=proposers)

    def begin_turn(self, session: SessionRounds, shared_length: int, *, recompute: bool) -> None:
        """A new prompt, of which only the first ``shared_length`` tokens are the session's as they
        were. With ``recompute`` the verifier's cache is not used: only what is computed has
        log-probabilities."""
        session.begin_turn(shared_length, recompute=recompute)

    async def run(
        self, session: SessionRounds, tokens: list[int], terms: RoundTerms, room: int, note: RoundNote
    ) -> RoundResult:
        """Propose and verify after the committed ``tokens``, of which there may be ``room`` more.
        Nothing is committed here. What is done on the way is put down in the ``note``.

        VerifierLostError, or a PeerError no retry mends. May be cancelled wherever it awaits: the
        session can go on.
        """
        session.verifier.is_private |= terms.do_not_collect
        if is_relayed(terms):
            return await next_result(self._parties, session, tokens, terms, room, note)
        return await run_ratio_round(self._parties, session, tokens, terms, room, note)

    def absent_source(self, session: SessionRounds, terms: RoundTerms) -> Source | None:
        """Return the only maker of hints that a turn asks for, if the session's peers have none;
        else None. A caller that gives a prediction is another maker."""
        sole = terms.speculation.sole_source if terms.prediction is None else None
        drafts = self._parties.drafts
        if sole is Source.DRAFT:
            is_there = any(drafts.of(drafting) is not None for drafting in session.draftings)
        elif sole is Source.HEADS:
            is_there = self._parties.verifying.verifiers.has_heads(session.verifier)
        else:
            is_there = True  # each verifier has n-grams
        return None if is_there else sole

    def end_turn(self, session: SessionRounds, generated_count: int) -> None:
        """The turn has ended after so many generated tokens; without any it is undone."""
        session.run.stop()
        if generated_count == 0:
            session.undo_turn()
        self._parties.running.discard(session)

    def release(self, session: SessionRounds) -> None:
        """Give a session's pages back on both peers."""
        session.run.stop()
        self._parties.running.discard(session)
        self._parties.verifying.release(session.verifier)
        for drafting in session.draftings:
            self._parties.drafts.release(drafting)
