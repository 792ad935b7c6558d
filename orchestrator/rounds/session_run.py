"""A session's run on its verifier, if one goes on, and the proposers that send hints for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.run_parts import Part
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifier_run import Hinting, VerifierRun
from orchestrator.proposers.proposer import Figures, Proposer
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.terms import RoundTerms


class SessionRun:
    """At most one run at a time. It ends with the turn at the latest."""

    def __init__(self, sequence: PeerSequence, proposers: Sequence[Proposer] = ()) -> None:
        self.sequence = sequence
        self._proposers = proposers
        self._working: Sequence[Proposer] = ()
        """Those that hint for the run."""
        self._kept: deque[RoundResult] = deque()
        self._kept_from = 0
        """The sequence's length before the first of them."""
        self._home: VerifierPeer | None = None
        self._run: VerifierRun | None = None

    def hinting(self, terms: RoundTerms, verifier: ModelInfo | None) -> Hinting:
        """Prepare the proposers for a run that is about to begin at a ``verifier``, and return how
        it uses hints."""
        asked = terms.speculation
        if asked.is_off or verifier is None:
            return Hinting()
        holds = [proposer.prepare(terms, verifier) for proposer in self._proposers]
        longest = max((hold for hold in holds if hold is not None), default=None)
        return Hinting(asked.takes_ngrams, asked.draft_length or 0, longest, asked.takes_heads)

    @property
    def rests(self) -> bool:
        """True while a proposer rests because its hints do not pay."""
        return any(proposer.rests for proposer in self._proposers)

    def take_figures(self) -> list[Figures]:
        """Return what the proposers did since the last call."""
        return [proposer.take_figures() for proposer in self._proposers]

    def keep(self, position: int, results: Sequence[RoundResult]) -> None:
        """Keep results that follow the first ``position`` tokens until they are returned."""
        self._kept, self._kept_from = deque(results), position

    def take_kept(self, position: int) -> RoundResult | None:
        """Return the next result that is kept, if it follows the first ``position`` tokens."""
        if not self._kept or position != self._kept_from:
            return None
        result = self._kept.popleft()
        self._kept_from += len(result.tokens)
        return result

    def continuing(self, home: VerifierPeer, length: int) -> VerifierRun | None:
        """Return the run that goes on at a verifier after ``length`` tokens. Any other run is
        stopped."""
        run = self._run
        if run is not None and self._home is home and run.length == length and run.goes_on:
            return run
        self.stop()
        return None

    def begin(
        self, home: VerifierPeer, run: VerifierRun, tokens: Sequence[int], until_length: int, terms: RoundTerms
    ) -> None:
        """Have a run that has just begun after the committed ``tokens``."""
        self._home, self._run = home, run
        self._working = () if terms.speculation.is_off else self._proposers
        for proposer in self._working:
            proposer.begin(tokens, until_length, terms, run)

    def committed(self, position: int, part: Part) -> None:
        """Tell the proposers what the target has chosen from a ``position`` on."""
        for proposer in self._working:
            proposer.committed(position, part)

    def stop(self) -> None:
        """Stop the run, if there is one, and its proposers, and drop kept results. The KV stays."""
        self._kept.clear()
        if self._run is not None:
            self._run.stop()
            self._home = self._run = None
            for proposer in self._working:
                proposer.stop()
            self._working = ()
