"""What all sessions of a draft and a target have learnt together. Pure."""

from __future__ import annotations

from collections import defaultdict

from orchestrator.speculation.acceptance import AcceptanceEstimate, Calibration
from orchestrator.speculation.common import CommonWay
from orchestrator.speculation.costs import DraftCosts, HitRates, VerifyCosts
from orchestrator.speculation.ngrams import SharedHistory
from orchestrator.speculation.plan import Overlap, Regime
from orchestrator.speculation.sharpening import Sharpening

_NGRAM_GUESSES = (0.4, 0.5, 0.6, 0.75, 0.9)
"""The longer the agreement, the better."""

_FAITH = 2.0
"""Tokens a round that a forecast is taken to be right about at first."""

_CORRECTION_WEIGHT = 0.03


class Correction:
    """By how much the forecasts of one way to run rounds are off."""

    def __init__(self) -> None:
        self._brought = self._forecast = _FAITH

    def observe(self, forecast_tokens: float, tokens: int) -> None:
        """A round was expected to bring ``forecast_tokens`` in the time it took."""
        self._brought += _CORRECTION_WEIGHT * (tokens - self._brought)
        # What one hiccup of the machine cost is not the forecast's fault.
        self._forecast += _CORRECTION_WEIGHT * (min(forecast_tokens, 4.0 * tokens) - self._forecast)

    @property
    def factor(self) -> float:
        """To multiply forecasts by."""
        return min(1.5, max(0.3, self._brought / self._forecast))


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
        self._corrections: defaultdict[Regime, Correction] = defaultdict(Correction)

    def regime(self, way: Overlap | None) -> Regime:
        """Of rounds run in a way with as many sessions as now."""
        return Regime(way, self.session_count.bit_length())

    def correction(self, way: Overlap | None) -> Correction:
        """Of the forecasts for a way, or for plain decoding (None), with about as many sessions as now: where many share a
        draft and a verifier, they wait for one another in ways that a forecast does not see."""
        return self._corrections[self.regime(way)]
