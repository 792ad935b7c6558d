"""Sums over turns, from which a ratio and its standard error follow. Pure.

A turn is the unit of chance: tokens of one text depend on one another. So a figure is a ratio of
sums over turns, and its standard error is that of a ratio estimator. The sums of several processes
add up.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import NamedTuple


class Ratio(NamedTuple):
    """A ratio and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class RatioSums:
    """Sums over turns of a numerator and a denominator, of their squares and of their product."""

    numerator: float = 0.0
    denominator: float = 0.0
    numerator_squares: float = 0.0
    products: float = 0.0
    denominator_squares: float = 0.0
    count: int = 0

    @classmethod
    def of_turn(cls, numerator: float, denominator: float) -> RatioSums:
        """Return the sums of one turn. One without a denominator says nothing."""
        if denominator <= 0:
            return cls()
        products = numerator * numerator, numerator * denominator, denominator * denominator
        return cls(numerator, denominator, *products, count=1)

    def plus(self, other: RatioSums, sign: int = 1) -> RatioSums:
        """Return the sums of both, or with a ``sign`` of -1 the difference."""
        return RatioSums(*[own + sign * added for own, added in zip(astuple(self), astuple(other), strict=True)])

    @property
    def ratio(self) -> Ratio | None:
        """The ratio; None while there is none."""
        if self.denominator <= 0 or self.count < 1:
            return None
        value = self.numerator / self.denominator
        squares = self.numerator_squares - 2 * value * self.products + value * value * self.denominator_squares
        spread = self.count / (self.count - 1) if self.count > 1 else math.inf
        return Ratio(value, math.sqrt(max(0.0, squares) * spread) / self.denominator if squares > 0 else 0.0)
