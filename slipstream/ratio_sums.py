"""Sums over turns, from which a ratio and its standard error follow. Pure.

A turn is the unit of chance: tokens of one text depend on one another. So a figure is a ratio of
sums over turns, and its standard error is that of a ratio estimator. The sums of several processes
add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import reduce
from typing import NamedTuple


class Ratio(NamedTuple):
    """A ratio and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class RatioSums:
    """Sums over turns of a numerator and a denominator, of their squares and of their product. Sums
    of whole numbers stay whole."""

    numerator: float = 0
    denominator: float = 0
    numerator_squares: float = 0
    products: float = 0
    denominator_squares: float = 0
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
    def value(self) -> float:
        """The ratio; 0 while there is none."""
        return self.numerator / self.denominator if self.denominator else 0.0

    def spread(self, value: float) -> float:
        """Return the sum over turns of the squared difference between a turn's numerator and what a
        ratio of ``value`` gives it."""
        return max(0.0, self.numerator_squares - 2 * value * self.products + value**2 * self.denominator_squares)

    @property
    def ratio(self) -> Ratio | None:
        """The ratio with its standard error; None while there is none."""
        if self.denominator <= 0 or self.count < 1:
            return None
        squares = self.spread(self.value)
        freedom = self.count / (self.count - 1) if self.count > 1 else math.inf
        return Ratio(self.value, math.sqrt(squares * freedom) / self.denominator if squares else 0.0)


NOTHING = RatioSums()


def total(sums: Iterable[RatioSums]) -> RatioSums:
    """Return all sums together."""
    return reduce(RatioSums.plus, sums, NOTHING)
