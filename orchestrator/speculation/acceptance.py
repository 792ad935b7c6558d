"""What share of a proposal survives, learnt as rounds go by. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from operator import mul

from orchestrator.speculation.kept import Kept, Plain, check_shares, faded
from orchestrator.speculation.proposal import Confidence

WINDOW = 200
"""Drafted tokens after which an observation has lost most of its weight."""

_POSITIONS = (1, 2, 3, 4, 6, 9, 16)
"""Tokens share an estimate from one of these positions to the next: later ones come up too seldom
to have their own."""

_KEPT_TOKENS = 200.0
"""Drafted tokens that what was learnt before counts for, where it is of all tokens, and where it is
of one sort of them."""
_KEPT_TOKENS_OF_A_SORT = 20.0

_LEAST_KEPT, _LARGEST_UNIT = 1e-6, 1e12
"""Of older observations by each new one; and how far a unit grows before all counts are put in
terms of it."""

_PRIOR_WEIGHT = 6.0
"""Observations that what is known of others is worth."""

_WARMTHS = (0.0, 0.5, 0.9)
WARMTH_COUNT = len(_WARMTHS) + 1


def warmth_of(temperature: float) -> int:
    """One number, from 0, for temperatures at which a draft is right about as often: of the same
    pair at .8 of the likeliest tokens and at .6 of those drawn at 1.0. 0 itself is alone, since a
    margin there is one of logits without noise."""
    return bisect_left(_WARMTHS, temperature)


class AcceptanceEstimate(Kept):
    """The odds that a draft token is accepted if all before it are, by its position in the
    proposal.

    A session's estimate leans on the pair's until it has seen enough itself; the pair's on an
    initial guess.
    """

    KEPT = ("_accepted", "_tried", "_all_accepted", "_all_tried")

    def __init__(self, prior: AcceptanceEstimate | float, window: float = WINDOW) -> None:
        self._prior = prior
        self._window = window
        self._accepted = [0.0] * (len(_POSITIONS) + 1)
        self._tried = [0.0] * (len(_POSITIONS) + 1)
        self._all_accepted = 0.0
        self._all_tried = 0.0
        self._unit = 1.0
        """What one token weighs by now: instead of all counts fading, what is new weighs more."""
        self.count = 0
        """Proposals observed."""

    def observe(self, drafted: int, accepted: int) -> None:
        """A proposal of ``drafted`` tokens had ``accepted`` accepted; what comes after the first
        rejected one was not tried."""
        self.count += 1
        tried = min(accepted + 1, drafted)
        self._unit /= max(_LEAST_KEPT, 1 - tried / self._window)
        if self._unit > _LARGEST_UNIT:
            self._settle()
        unit, all_tried, all_accepted = self._unit, self._tried, self._accepted
        buckets = _buckets(tried)
        for bucket in buckets:
            all_tried[bucket] += unit
            all_accepted[bucket] += unit
        if tried > accepted:  # by one
            all_accepted[buckets[-1]] -= unit
        self._all_tried += tried * unit
        self._all_accepted += accepted * unit
        if isinstance(self._prior, AcceptanceEstimate):
            self._prior.observe(drafted, accepted)

    def state(self) -> dict[str, Plain]:
        """The counts, in tokens. Nothing is changed by asking."""
        unit = self._unit
        return {
            "_accepted": [count / unit for count in self._accepted],
            "_tried": [count / unit for count in self._tried],
            "_all_accepted": self._all_accepted / unit,
            "_all_tried": self._all_tried / unit,
        }

    def take(self, state: Plain) -> None:
        """Go on from counts. NotKeptError."""
        self._unit = 1.0
        super().take(state)
        check_shares([*self._accepted, self._all_accepted], [*self._tried, self._all_tried])
        total = self._all_tried
        self._accepted, self._tried = (faded(counts, total, _KEPT_TOKENS) for counts in (self._accepted, self._tried))
        self._all_accepted, self._all_tried = faded([self._all_accepted, self._all_tried], total, _KEPT_TOKENS)

    @property
    def mean(self) -> float:
        """Over all positions."""
        prior = self._prior.mean if isinstance(self._prior, AcceptanceEstimate) else self._prior
        known = _PRIOR_WEIGHT * self._unit
        return (self._all_accepted + known * prior) / (self._all_tried + known)

    def at(self, position: int) -> float:
        """The odds at one position, from 0. What has not been seen is, for a session, as for the
        pair; for a pair, as elsewhere."""
        return self._odds()[bisect_right(_POSITIONS, position)]

    def _odds(self) -> list[float]:
        """By bucket of positions."""
        prior = self._prior
        known = prior._odds() if isinstance(prior, AcceptanceEstimate) else [self.mean] * len(self._tried)
        weight = _PRIOR_WEIGHT * self._unit
        return [
            (accepted + weight * expected) / (tried + weight)
            for accepted, tried, expected in zip(self._accepted, self._tried, known, strict=True)
        ]

    def _settle(self) -> None:
        """Let one token weigh 1 again."""
        unit, self._unit = self._unit, 1.0
        self._tried = [count / unit for count in self._tried]
        self._accepted = [count / unit for count in self._accepted]
        self._all_tried /= unit
        self._all_accepted /= unit

    def survivals(self, length: int) -> list[float]:
        """The odds that the first 1, 2 .. ``length`` tokens are all accepted."""
        odds = self._odds()
        return list(accumulate((odds[bucket] for bucket in _buckets(length)), mul))


@cache
def _buckets(length: int) -> list[int]:
    return [bisect_right(_POSITIONS, position) for position in range(length)]


_LOGPROBS = (-3.0, -1.5, -0.7, -0.3, -0.1, -0.03, -0.005)
_MARGINS = (0.1, 0.3, 0.6, 1.0, 1.7, 3.0, 6.0)


class Calibration(Kept):
    """The odds that a draft token is accepted, given how sure the draft is of it.

    A draft's own log-probability is not those odds: it may be over- or underconfident, and at a
    temperature its token depends on noise that the target shares. So tokens are sorted by
    log-probability and margin, and what came of each sort is counted.
    """

    KEPT = ("_accepted", "_tried")

    def __init__(self, window: float = 20 * WINDOW) -> None:
        self._keep = 1 - 1 / window
        size = (len(_LOGPROBS) + 1) * (len(_MARGINS) + 1)
        self._accepted = [0.0] * size
        self._tried = [0.0] * size

    def observe(self, confidences: Sequence[Confidence], accepted: int) -> None:
        """Of a verified proposal's tokens the first ``accepted`` were accepted."""
        for position, confidence in enumerate(confidences[: accepted + 1]):
            cell = _cell(confidence)
            self._tried[cell] = self._tried[cell] * self._keep + 1
            self._accepted[cell] = self._accepted[cell] * self._keep + (position < accepted)

    def take(self, state: Plain) -> None:
        """Go on from counts. NotKeptError."""
        super().take(state)
        check_shares(self._accepted, self._tried)
        for cell, total in enumerate(self._tried):
            counts = [self._accepted[cell], total]
            self._accepted[cell], self._tried[cell] = faded(counts, total, _KEPT_TOKENS_OF_A_SORT)

    def survivals(self, confidences: Sequence[Confidence], fallback: Sequence[float]) -> list[float]:
        """As `AcceptanceEstimate.survivals`; ``fallback`` is that estimate, for sorts that have
        hardly been seen."""
        survival, survivals = 1.0, []
        before = 1.0
        for confidence, expected in zip(confidences, fallback, strict=False):
            cell = _cell(confidence)
            usual = expected / before if before else 0.0
            survival *= (self._accepted[cell] + _PRIOR_WEIGHT * usual) / (self._tried[cell] + _PRIOR_WEIGHT)
            survivals.append(survival)
            before = expected
        return survivals


def _cell(confidence: Confidence) -> int:
    return bisect_right(_LOGPROBS, confidence.logprob) * (len(_MARGINS) + 1) + bisect_right(_MARGINS, confidence.margin)
