"""The factor on a draft's temperature that gets most tokens accepted, learnt for each temperature.
Pure.

A draft's rule is its own affair: with a lower temperature its choice follows its logits more and
the shared noise less. How much is best differs by pair and temperature, so factors are tried as
Thompson (1933) has it: each as often as it is likely to be the best.
"""

from __future__ import annotations

import random
from collections import defaultdict

from orchestrator.speculation.kept import Kept, NotKeptError, Plain, faded, numbers

FACTORS = (1.0, 0.8, 0.6, 0.4, 0.2)
_WINDOW = 20_000
"""Tried tokens after which an observation has lost most of its weight."""


_KEPT_TOKENS = 1000.0
"""Tried tokens of a factor that what was learnt before counts for."""


class _Arms:
    def __init__(self) -> None:
        self.accepted = [1.0] * len(FACTORS)
        self.rejected = [1.0] * len(FACTORS)


class Sharpening(Kept):
    """Belongs to a pair. Its draws decide how fast a text comes, never which text."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = random.Random(seed).betavariate
        self._arms: defaultdict[float, _Arms] = defaultdict(_Arms)

    def factor(self, temperature: float) -> float:
        """The factor to draft with next at the target's ``temperature``."""
        if temperature == 0:
            return 1.0
        arms = self._arms[_bucket(temperature)]
        draws = [self._draw(*odds) for odds in zip(arms.accepted, arms.rejected, strict=True)]
        return FACTORS[draws.index(max(draws))]

    def observe(self, temperature: float, factor: float, drafted: int, accepted: int) -> None:
        """What came of a proposal drafted with ``factor``. One that is set, and not among FACTORS,
        leaves nothing to learn."""
        if temperature == 0 or factor not in FACTORS:
            return
        arms, index = self._arms[_bucket(temperature)], FACTORS.index(factor)
        keep = 1 - 1 / _WINDOW
        arms.accepted[index] = arms.accepted[index] * keep + accepted
        arms.rejected[index] = arms.rejected[index] * keep + (accepted < drafted)

    def state(self) -> dict[str, Plain]:
        """Accepted and rejected tokens of each factor, by temperature."""
        return {str(temperature): [[*arms.accepted], [*arms.rejected]] for temperature, arms in self._arms.items()}

    def take(self, state: Plain) -> None:
        """Go on from counts. NotKeptError."""
        if not isinstance(state, dict):
            raise NotKeptError("factors are by temperature")
        for name, counts in state.items():
            if not isinstance(counts, list) or len(counts) != 2:
                raise NotKeptError("of a factor accepted and rejected tokens are counted")
            arms = self._arms[_temperature(name)]
            arms.accepted, arms.rejected = (numbers(each, len(FACTORS)) for each in counts)
            for index, odds in enumerate(zip(arms.accepted, arms.rejected, strict=True)):
                fewer = faded([*odds], sum(odds), _KEPT_TOKENS)
                arms.accepted[index], arms.rejected[index] = (max(1.0, each) for each in fewer)


def _temperature(name: str) -> float:
    try:
        return _bucket(float(name))
    except ValueError as error:
        raise NotKeptError(f"{name!r} is no temperature") from error


def _bucket(temperature: float) -> float:
    return round(temperature, 1)
