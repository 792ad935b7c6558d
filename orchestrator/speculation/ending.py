"""What a turn's end leaves of a draft: neither model goes on behind it. Pure.

Turns are taken to end at every token with the same odds, so that wherever one is, as much is to come. With L their mean length,
g = 1 - 1 / L the odds to go on and S_i those that i draft tokens survive, of k draft tokens that are asked for::

    1 + g + .. + g^(k-1)          are drafted
    g + .. + g^k                  are verified: a last one comes as the verification's own
    1 + g S_1 + .. + g^k S_k      come of a round
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orchestrator.speculation.costs import LONGEST_WEIGHED

Floats = NDArray[np.float64]

_EXPONENTS = np.arange(LONGEST_WEIGHED + 1)


class Ending:
    """Of turns that generate ``mean_length`` tokens; 0: nobody knows, and none ends."""

    def __init__(self, mean_length: float) -> None:
        self._odds = (1 - 1 / max(1.0, mean_length)) ** _EXPONENTS if mean_length else np.ones(len(_EXPONENTS))
        """That 0, 1, 2 .. tokens from here on are not the last."""
        self._drafted = np.concatenate(([0.0], np.cumsum(self._odds[:-1])))

    @property
    def going_on(self) -> float:
        """The odds that a token is not the last."""
        return float(self._odds[1])

    def tokens(self, survivals: Floats) -> Floats:
        """What a round brings with 0, 1, 2 .. draft tokens, the first of which survive with these odds."""
        return np.concatenate(([1.0], 1 + np.cumsum(survivals * self._odds[1 : 1 + len(survivals)])))

    def drafted(self, length: int) -> float:
        """How many of so many tokens that a draft is asked for it comes to."""
        return float(self._drafted[length])

    def drafted_of(self, lengths: NDArray[np.integer]) -> Floats:
        """The same of many lengths."""
        return np.asarray(self._drafted[lengths])

    def verified(self, seconds: Floats) -> Floats:
        """Seconds of a verification where 0, 1, 2 .. tokens are meant to be in it, by those where so many are."""
        return np.concatenate(
            (seconds[:1], seconds[1] + np.cumsum(np.diff(seconds[1:], prepend=seconds[1]) * self._odds))
        )
