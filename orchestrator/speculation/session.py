"""What one session knows of its own speculation. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from orchestrator.speculation.acceptance import AcceptanceEstimate, Calibration, warmth_of
from orchestrator.speculation.continuations import Continuations
from orchestrator.speculation.costs import LONGEST_WEIGHED
from orchestrator.speculation.knowledge import PairKnowledge, VerifierKnowledge
from orchestrator.speculation.plan import Overlap
from orchestrator.speculation.planner import Planner
from orchestrator.speculation.proposal import Proposal, Source
from slipstream.ngrams import NgramIndex

_MATCHES = (4, 6, 10, 20)
"""N-gram proposals share an estimate from one of these lengths of agreement to the next."""


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """What a turn asks for; None leaves the choice to what is measured. ``draft_length`` 0 is
    off."""

    draft_length: int | None = None
    overlap: Overlap | None = None
    source: Source | None = None

    @property
    def is_off(self) -> bool:
        """Whether the target is to decode plainly."""
        return self.draft_length == 0

    @property
    def uses_draft(self) -> bool:
        """Whether the draft service may be asked."""
        return self.draft_length != 0 and self.source is not Source.NGRAM

    @property
    def takes_ngrams(self) -> bool:
        """Whether proposals may come from the session's own tokens."""
        return self.source is Source.NGRAM or (self.source is None and self.is_adaptive)

    @property
    def is_adaptive(self) -> bool:
        """Whether the draft length is open."""
        return self.draft_length is None


@dataclass(frozen=True)
class Candidate:
    """A proposal that could be verified next; ``calibration`` knows what a draft's confidence is
    worth."""

    proposal: Proposal
    estimate: AcceptanceEstimate
    calibration: Calibration | None = None

    @cached_property
    def survivals(self) -> list[float]:
        """The odds that its first 1, 2 .. tokens survive. Computed where it is asked for: a fixed
        draft length does not."""
        usual = self.estimate.survivals(len(self.proposal))
        if self.calibration is None or not self.proposal.confidences:
            return usual
        return self.calibration.survivals(self.proposal.confidences, usual)

    @property
    def expected(self) -> float:
        """How many of its tokens will be accepted."""
        return self.expected_of(len(self.proposal))

    def expected_of(self, length: int) -> float:
        """How many of the first ``length`` will be."""
        return sum(self.survivals[:length])


class SessionSpeculation:
    """The session's estimates, which outlive a turn, and what has been proposed, which does not."""

    def __init__(self, pair: PairKnowledge) -> None:
        self.planner = Planner(pair)
        self.continuations = Continuations()
        self._pair = pair
        self._home = VerifierKnowledge()
        self._ngrams = NgramIndex()
        self._warmth = 0
        self._ngram_acceptance = [AcceptanceEstimate(prior) for prior in pair.ngram_acceptance]

    def live_on(self, home: VerifierKnowledge) -> None:
        """The next rounds are this verifier's."""
        self._home = home
        self.planner.live_on(home)

    def draft_with(self, pair: PairKnowledge) -> None:
        """The next rounds' proposals are this pair's draft's; what another one has said is
        forgotten."""
        if pair is not self._pair:
            self._pair = pair
            self.planner.draft_with(pair)
            self.continuations = Continuations()

    def begin_turn(self, shared_length: int) -> None:
        """A new prompt, of which the first ``shared_length`` tokens are the session's as they
        were."""
        self.continuations = Continuations()
        self.planner.begin_turn()
        if shared_length < self._ngrams.length:
            self._ngrams.clear()

    def draw_at(self, temperature: float) -> None:
        """The next rounds' tokens are chosen at this temperature."""
        self._warmth = warmth_of(temperature)
        self.planner.draw_at(self._warmth)

    def end_turn(self, tokens: Sequence[int], generated_count: int) -> None:
        """The turn has ended with these ``tokens``, the session's from its first on, the last of
        them generated."""
        if generated_count:
            self._pair.turn_length.observe(generated_count)

    def from_draft(self, tokens: Sequence[int]) -> Candidate | None:
        """What the draft has already said comes after the committed ``tokens``."""
        proposal = self.continuations.after(tokens)
        if proposal is None:
            return None
        return Candidate(proposal, self.planner.acceptance, self._pair.calibrations[self._warmth])

    def from_ngrams(self, tokens: Sequence[int], longest: int) -> Candidate | None:
        """What followed the last tokens when they were said before, where more of the past
        agrees."""
        if longest <= 0:
            return None
        found = self._ngrams.find(tokens, longest)
        if found is None or not found[0]:
            return None
        continuation, agreeing = found
        estimate = self._ngram_acceptance[bisect_right(_MATCHES, agreeing)]
        return Candidate(Proposal(continuation, source=Source.NGRAM), estimate)

    def best_length(
        self, survivals: Sequence[float], way: Overlap | None, waited: float, ending: int | None = None
    ) -> int:
        """How many tokens of a proposal that is there, and was ``waited`` for, are worth verifying:
        most expected tokens a second. The turn ends with the token number ``ending``, if that is
        right: then all before it, which a round's own token comes after, are worth it where leaving
        some of them to another round would take longer, and none is that follows."""
        seconds = self._home.costs.rounds(self._home.regime(way))[1 : 2 + min(len(survivals), LONGEST_WEIGHED)]
        best, expected = 0, 1.0
        highest = expected / (waited + seconds[0])
        for length, survival in enumerate(survivals[:LONGEST_WEIGHED], 1):
            expected += survival
            rate = expected / (waited + seconds[length])
            if rate >= highest:  # of equal rates the longest: its tokens cost nothing
                best, highest = length, rate
        if ending is None or ending > len(seconds):
            return best
        enough = ending - 1
        if best >= enough:
            return enough
        survival = survivals[best - 1] if best else 1.0
        return enough if seconds[enough] <= seconds[best] + survival * seconds[enough - best - 1] else best

    def rate(self, expected: float, length: int, waited: float) -> float:
        """Tokens a second of a round that verifies ``length`` tokens, ``expected`` of them
        accepted, after a wait."""
        verified = self._home.costs.at(1 + length, self._home.regime(Overlap.NONE))
        return (1 + expected) / max(1e-6, waited + verified)

    def observe(self, candidate: Candidate, verified: int, accepted: int) -> None:
        """What came of the first ``verified`` tokens of a candidate."""
        candidate.estimate.observe(verified, accepted)
        if candidate.calibration is not None and candidate.proposal.confidences:
            candidate.calibration.observe(candidate.proposal.confidences[:verified], accepted)
