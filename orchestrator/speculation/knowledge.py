"""What all sessions of a draft and a target have learnt together. Pure."""

from __future__ import annotations

from collections import defaultdict

from orchestrator.speculation.acceptance import AcceptanceEstimate, Calibration
from orchestrator.speculation.budget import VerifyBudget
from orchestrator.speculation.common import CommonWay
from orchestrator.speculation.corrections import Corrections
from orchestrator.speculation.costs import Average, DraftCosts, HitRates, VerifyCosts
from orchestrator.speculation.load import Loaded
from orchestrator.speculation.ngrams import SharedHistory
from orchestrator.speculation.sharpening import Sharpening

_NGRAM_GUESSES = (0.4, 0.5, 0.6, 0.75, 0.9)
"""The longer the agreement, the better."""


class VerifierKnowledge(Loaded):
    """What the sessions that live on one verifier share: its steps, so what is known of them and the budget of their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.costs = VerifyCosts()
        self.budget = VerifyBudget(self.costs)


class PairKnowledge(Loaded):
    """What all sessions of a pair learn together. A draft takes the rows of all of them into one step."""

    def __init__(self, history: SharedHistory | None = None) -> None:
        """``history`` if sessions may propose what others said."""
        super().__init__()
        self.history = history
        self.verifiers: defaultdict[str, VerifierKnowledge] = defaultdict(VerifierKnowledge)
        """By address."""
        self.drafting = DraftCosts()
        self.common = CommonWay()
        self.turn_length = Average()
        """Tokens that turns generate: what a way needs to get going weighs more the fewer there are."""
        self.acceptance = AcceptanceEstimate(0.7, window=2000)
        self.ngram_acceptance = [AcceptanceEstimate(guess, window=2000) for guess in _NGRAM_GUESSES]
        """Of n-gram proposals, by how long the past agrees with the present."""
        self.calibration = Calibration()
        self.hits = HitRates()
        self.sharpening = Sharpening()
        self.corrections = Corrections()

    @property
    def running_count(self) -> int:
        """Sessions whose turns run, on all verifiers."""
        return sum(verifier.budget.session_count for verifier in self.verifiers.values())
