"""The worth of stated odds, learnt from the choices of the target. Pure.

Each maker has one factor for each class of temperatures: the tokens that were right, over those
that its odds promised. Only recent tokens count, so a draft that recovers is trusted again soon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.engine.hinting.hints import Candidate, Maker

MEMORY = 64
"""Tokens after which an outcome counts a third as much as a new one. More: the factor is steadier,
but a draft that changes is found out later."""

PRIOR = 8
"""Tokens that a new maker is taken to have had right. More: a maker that promises too much costs
more at first."""

LEAST_SURVIVAL = 0.01
"""Tokens that are less likely than this to count are neither verified nor guessed. It bounds the
work of choosing; a step's price is mostly higher."""

_MOST_MAKERS = 256


@dataclass(slots=True)
class _Sums:
    """Decayed sums over tokens: how many were right, how many were promised, and how many there
    were."""

    right: float
    promised: float
    count: float


class Calibration:
    """The factors of all makers. The least recently judged give way if there are too many."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Maker, int], _Sums] = {}

    def judge(self, maker: Maker, odds: float, is_right: bool, temperature_class: int = 0) -> None:
        """Record that the target chose at a token's position: the token or another."""
        key = maker, temperature_class
        sums = self._sums.pop(key, None) or _Sums(PRIOR, PRIOR, PRIOR)
        self._sums[key] = sums
        decay = 1 - 1 / MEMORY
        sums.right = sums.right * decay + is_right
        sums.promised = sums.promised * decay + odds
        sums.count = sums.count * decay + 1
        if len(self._sums) > _MOST_MAKERS:
            del self._sums[next(iter(self._sums))]

    def factor(self, maker: Maker, temperature_class: int = 0) -> float:
        """Return what to multiply a maker's stated odds by."""
        sums = self._sums.get((maker, temperature_class))
        return sums.right / max(sums.promised, 1e-9) if sums is not None else 1.0

    def mean(self, maker: Maker, temperature_class: int = 0) -> float:
        """Return the share of a maker's recent tokens that were right; 1 for a new maker."""
        sums = self._sums.get((maker, temperature_class))
        return sums.right / sums.count if sums is not None else 1.0

    def best(
        self, candidates: Sequence[Candidate], limit: int, temperature_class: int = 0
    ) -> tuple[Candidate, list[float]] | None:
        """Return the candidate whose first ``limit`` tokens are expected to bring most, the first
        of equals, and the corrected survivals of its tokens; None if there is none."""
        best: tuple[Candidate, list[float]] | None = None
        most = 0.0
        for candidate in candidates:
            products = survivals(candidate.odds[:limit], self.factor(candidate.hint.maker, temperature_class))
            if (expected := sum(products)) > most:
                best, most = (candidate, products), expected
        return best


def survivals(odds: Sequence[float], factor: float) -> list[float]:
    """Return the running product of ``odds``, each times ``factor`` and at most 1, down to
    `LEAST_SURVIVAL`."""
    products: list[float] = []
    product = 1.0
    for single in odds:
        product *= min(1.0, single * factor)
        if product < LEAST_SURVIVAL:
            break
        products.append(product)
    return products


def temperature_class(temperature: float) -> int:
    """Return the class of a temperature: 0 is greedy, then one class for each half."""
    return min(4, math.ceil(2 * temperature)) if temperature > 0 else 0
