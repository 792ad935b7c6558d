"""What a turn's end leaves of a draft: neither model goes on behind it. Pure.

Turns are taken to end at every token with the same odds, so that wherever one is, as much is to
come. With L their mean length, g = 1 - 1 / L the odds to go on and S_i those that i draft tokens
survive, of k draft tokens that are asked for::

    1 + g + .. + g^(k-1)          are drafted
    g + .. + g^k                  are verified: a last one comes as the verification's own
    1 + g S_1 + .. + g^k S_k      come of a round
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from operator import mul

from orchestrator.speculation.costs import LONGEST_WEIGHED

_REMEMBERED = 64
"""Turn lengths, and tables of seconds, that change only now and then."""


class Ending:
    """Of turns that generate ``mean_length`` tokens; 0: their length is unknown, and none ends."""

    def __init__(self, mean_length: float) -> None:
        odds = 1 - 1 / max(1.0, mean_length) if mean_length else 1.0
        self._odds = [*accumulate(repeat(odds, LONGEST_WEIGHED), mul, initial=1.0)]
        """That 0, 1, 2 .. tokens from here on are not the last."""
        self._drafted = [*accumulate(self._odds[:-1], initial=0.0)]
        self._verified = lru_cache(_REMEMBERED)(self._verify)

    @property
    def going_on(self) -> float:
        """The odds that a token is not the last."""
        return self._odds[1]

    def tokens(self, survivals: Sequence[float]) -> list[float]:
        """What a round brings with 0, 1, 2 .. draft tokens, the first of which survive with these
        odds."""
        return [*accumulate(map(mul, survivals, self._odds[1:]), initial=1.0)]

    def drafted(self, length: int) -> float:
        """How many of so many tokens that a draft is asked for it comes to."""
        return self._drafted[length]

    def verified(self, seconds: tuple[float, ...]) -> list[float]:
        """Seconds of a verification where 0, 1, 2 .. tokens are meant to be in it, by those where
        so many are."""
        return self._verified(seconds)

    def _verify(self, seconds: tuple[float, ...]) -> list[float]:
        longer = (
            (more - fewer) * odds for (fewer, more), odds in zip(pairwise(seconds[1:]), self._odds[1:], strict=False)
        )
        return [seconds[0], *accumulate(longer, initial=seconds[1])]


@lru_cache(_REMEMBERED)
def ending_of(mean_length: float) -> Ending:
    """`Ending`, made once for turns of one length."""
    return Ending(mean_length)
