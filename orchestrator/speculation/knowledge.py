"""What all sessions of a draft and a target have learnt together. Pure."""

from __future__ import annotations

from orchestrator.speculation.acceptance import AcceptanceEstimate, Calibration
from orchestrator.speculation.common import CommonWay
from orchestrator.speculation.corrections import Corrections
from orchestrator.speculation.costs import DraftCosts, HitRates, VerifyCosts
from orchestrator.speculation.ngrams import SharedHistory
from orchestrator.speculation.plan import Overlap, Regime, load_of
from orchestrator.speculation.sharpening import Sharpening

_NGRAM_GUESSES = (0.4, 0.5, 0.6, 0.75, 0.9)
"""The longer the agreement, the better."""


class PairKnowledge:
    """What all sessions of a pair learn together."""

    def __init__(self, history: SharedHistory | None = None) -> None:
        """``history`` if sessions may propose what others said."""
        self.history = history
        self.verify = VerifyCosts()
        self.drafting = DraftCosts()
        self.common = CommonWay()
        self.session_count = 1
        """Whose turns run just now: all draft alike, and a draft takes their rows into one step."""
        self.acceptance = AcceptanceEstimate(0.7, window=2000)
        self.ngram_acceptance = [AcceptanceEstimate(guess, window=2000) for guess in _NGRAM_GUESSES]
        """Of n-gram proposals, by how long the past agrees with the present."""
        self.calibration = Calibration()
        self.hits = HitRates()
        self.sharpening = Sharpening()
        self.now = Regime(None)
        """The latest round's."""
        self.corrections = Corrections()

    def regime(self, way: Overlap | None) -> Regime:
        """Of rounds run in a way with as many sessions as now."""
        return Regime(way, load_of(self.session_count))
