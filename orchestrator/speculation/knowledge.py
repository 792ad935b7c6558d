"""What all sessions of a draft and a target have learnt together. Pure."""

from __future__ import annotations

from orchestrator.speculation.acceptance import AcceptanceEstimate, Calibration
from orchestrator.speculation.common import CommonWay
from orchestrator.speculation.corrections import Corrections
from orchestrator.speculation.costs import Average, DraftCosts, HitRates, VerifyCosts
from orchestrator.speculation.ngrams import SharedHistory
from orchestrator.speculation.plan import Overlap, Regime, load_of
from orchestrator.speculation.sharpening import Sharpening

_NGRAM_GUESSES = (0.4, 0.5, 0.6, 0.75, 0.9)
"""The longer the agreement, the better."""

_RECENT_ROUNDS, _FEW = 2, 4
"""How many rounds of every session count as recent, as if there were no fewer sessions than a few."""

_MASS_ARRIVAL = 1.5
"""So many times as many sessions as of late have not come one by one."""


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
        self.turn_length = Average()
        """Tokens that turns generate: what a way needs to get going weighs more the fewer there are."""
        self._mean_count = self._recent_count = 1.0
        self.acceptance = AcceptanceEstimate(0.7, window=2000)
        self.ngram_acceptance = [AcceptanceEstimate(guess, window=2000) for guess in _NGRAM_GUESSES]
        """Of n-gram proposals, by how long the past agrees with the present."""
        self.calibration = Calibration()
        self.hits = HitRates()
        self.sharpening = Sharpening()
        self.now = Regime(None)
        """The latest round's."""
        self.corrections = Corrections()

    @property
    def load(self) -> int:
        """`load_of` the sessions now, or until of late: with short answers some have always just ended."""
        return load_of(round(self._recent_count))

    @property
    def is_settled(self) -> bool:
        """False while far more turns run than of late, all having just begun: what rounds then take says little of those to
        come."""
        return self.session_count <= _MASS_ARRIVAL * self._mean_count

    def begin_round(self, session_count: int) -> None:
        """One of so many sessions begins a round."""
        self.session_count = session_count
        weight = 1 / (_RECENT_ROUNDS * max(_FEW, session_count))
        self._mean_count += weight * (session_count - self._mean_count)
        self._recent_count = max(session_count, self._recent_count + weight * (session_count - self._recent_count))

    def regime(self, way: Overlap | None) -> Regime:
        """Of rounds run in a way with about as many sessions as now."""
        return Regime(way, self.load)
