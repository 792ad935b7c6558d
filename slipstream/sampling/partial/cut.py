"""Bounds of the place at which filters cut a row of which some log-probabilities are known.

Top-k, top-p and min-p keep the tokens from a certain log-probability on
(`slipstream.sampling.kernel.draw`). It is certain if the listed tokens settle it, and else it lies
between the values that the least and the most of the others give.

**Top-k** cuts at the k-th largest, **min-p** at the largest plus ``temperature * log(min_p)``. Both
rise with the row, so the row of the least and the row of the most bound them.

**Top-p** keeps a token if what is likelier has less than ``top_p`` of the mass, weighed by ``p^a``
with ``a = 1 / temperature``. Log-probabilities are normalised, so the ``U`` tokens that are not
listed have the mass ``R = 1 - sum(p)`` together, and each has at most ``b``. As ``p^a = p *
p^(a-1)``, and by Jensen's inequality for ``p^a`` (convex for a >= 1, concave below),

    a >= 1:  U (R / U)^a  <=  sum of p^a  <=  R b^(a-1)
    a <  1:  R b^(a-1)    <=  sum of p^a  <=  U (R / U)^a.

At temperature 1 both are R.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from slipstream.sampling.kernel import Floats, Floats32
from slipstream.sampling.partial.known import PartialRow, rounding
from slipstream.sampling.rule import SamplingRule

_NONE, _ALL = np.float32(-np.inf), np.float32(np.inf)
_MASS_ROUNDING = 1e-5
"""Relative: masses that are nearer are not told apart. A server's float32 log-softmax sums to 1 so
closely."""
_MOST_EXPONENT = 700.0


class Cut(NamedTuple):
    """Bounds of a cut: a token below ``least`` is left out, and one from ``most`` on is kept."""

    least: np.float32
    most: np.float32

    def and_also(self, other: Cut) -> Cut:
        """Return the cut that keeps what both keep."""
        return Cut(max(self.least, other.least), max(self.most, other.most))


NO_CUT = Cut(_NONE, _NONE)


class Others(NamedTuple):
    """The most that tokens may have that are not listed: ``bulk`` of them have the row's bound,
    and others, which are capped or which the rule changes, ``changed`` float32. Tokens at -inf are
    left out."""

    bound: np.float32
    bulk: int
    changed: Floats32

    @classmethod
    def of_bound(cls, known: PartialRow) -> Others:
        """Return the others of a row without caps that its rule does not change."""
        return cls(known.bound, known.vocabulary_size - len(known.token_ids), np.empty(0, dtype=np.float32))

    @classmethod
    def of_values(cls, known: PartialRow, most: Floats32) -> Others:
        """Return the others of a row, from the ``most`` that each of its tokens may have."""
        others = most.copy()
        others[known.token_ids] = -np.inf
        changed = others[(others > -np.inf) & (others != known.bound)]
        return cls(known.bound, int((others == known.bound).sum()), changed)

    @property
    def largest(self) -> float:
        """Return the most that any of them may have; -inf if there are none."""
        return max(float(self.bound) if self.bulk else -math.inf, float(self.changed.max(initial=-np.inf)))

    def within(self, least: float, most: float) -> int:
        """Return how many may have so much at most."""
        at_bound = self.bulk if least <= self.bound <= most else 0
        return at_bound + int(((self.changed >= least) & (self.changed <= most)).sum())

    def from_value(self, least: np.float32) -> Others:
        """Return those that may have at least so much."""
        return Others(self.bound, self.bulk if self.bound >= least else 0, self.changed[self.changed >= least])


class Bounded(NamedTuple):
    """A row after its rule has changed it: the ``most`` and the ``least`` that each token may have,
    float32 ``[vocabulary]``, -inf at least where it is not listed."""

    known: PartialRow
    most: Floats32
    least: Floats32
    others: Others

    def listed(self) -> Floats32:
        """Return what the listed tokens have."""
        values: Floats32 = self.least[self.known.token_ids]
        return values


def top_k_cut(row: Bounded, rule: SamplingRule) -> Cut:
    """Return where top-k cuts."""
    count = rule.top_k
    if not 0 < count < len(row.most):
        return NO_CUT
    listed = row.listed()
    least = np.partition(listed, -count)[-count] if count <= len(listed) else _NONE
    if row.others.largest <= least:
        return Cut(np.float32(least), np.float32(least))
    above = row.most[row.most > least]
    most = np.partition(above, -count)[-count] if count <= len(above) else least
    return Cut(np.float32(least), np.float32(most))


def min_p_cut(row: Bounded, rule: SamplingRule) -> Cut:
    """Return where min-p cuts."""
    if rule.min_p == 0:
        return NO_CUT
    distance = rule.temperature * math.log(rule.min_p)
    least = float(row.listed().max(initial=-np.inf))
    return Cut(_at_least(least + distance), _at_least(max(least, row.others.largest) + distance))


def widened(cut: Cut, row: Bounded, *, is_one_there: bool = False) -> Cut:
    """Return the bounds of a cut of the raw logits, which rounding may have moved. It matters if a
    token is that near. ``is_one_there``: the cut is one token's own value, and that one stays with
    it."""
    if cut == NO_CUT:
        return cut
    near = np.float32(rounding(float(min(cut.least, cut.most)), 1.0))
    wide = Cut(cut.least - near, cut.most + near)
    listed = row.listed()
    count = int(((listed >= wide.least) & (listed <= wide.most)).sum())
    return wide if count + row.others.within(float(wide.least), float(wide.most)) > is_one_there else cut


def top_p_cut(row: Bounded, rule: SamplingRule, top_k: Cut) -> Cut:
    """Return where top-p cuts of what ``top_k`` leaves."""
    if rule.top_p == 1:
        return NO_CUT
    values = np.sort(row.listed())[::-1].astype(np.float64)
    values = values[(values >= top_k.least) & (values > -np.inf)]
    if not len(values):
        return Cut(_NONE, _ALL)
    sharpness, largest = 1 / rule.temperature, float(values[0])
    weights = np.exp((values - largest) * sharpness)
    others = others_mass(row, sharpness, largest, top_k)
    # The first of equals has what is strictly likelier before it.
    firsts = np.searchsorted(-values, -values, side="left")
    above = np.concatenate([[0.0], np.cumsum(weights)])[firsts]
    likelier = np.array([others.likelier_than(value) for value in values]) if others.most else np.zeros(len(values))
    sure = float(weights[values >= top_k.most].sum())
    kept = above + likelier < rule.top_p * (sure + np.maximum(others.least, likelier)) * (1 - _MASS_ROUNDING)
    left_out = above >= rule.top_p * (float(weights.sum()) + others.most) * (1 + _MASS_ROUNDING)
    return Cut(
        np.nextafter(np.float32(values[left_out][0]), _ALL) if left_out.any() else _NONE,
        np.float32(values[kept][-1]) if kept.any() else _ALL,
    )


class Mass(NamedTuple):
    """Bounds of the mass of tokens that are not listed. ``bulk`` is the most that those have
    together which the rule does not change, each at most ``bound``; ``changed`` are the values of
    the others, and ``weights`` their masses."""

    least: float
    bulk: float
    bound: float
    changed: Floats
    weights: Floats

    @property
    def most(self) -> float:
        """Return the upper bound of all of it."""
        return self.bulk + float(self.weights.sum())

    def likelier_than(self, value: float) -> float:
        """Return the most that tokens may have that may be likelier than ``value``."""
        bulk = self.bulk if self.bound > value else 0.0
        return bulk + float(self.weights[self.changed > value].sum())


def others_mass(row: Bounded, sharpness: float, largest: float, top_k: Cut) -> Mass:
    """Return bounds of ``sum of exp((value - largest) * sharpness)`` over the tokens that are not
    listed and that ``top_k`` leaves."""
    known, bound = row.known, float(row.known.bound)
    others = row.others.from_value(top_k.least)
    unchanged, changed = others.bulk, others.changed.astype(np.float64)
    rest = 1 - float(np.exp(known.logprobs.astype(np.float64)).sum())
    elsewhere = (known.vocabulary_size - len(known.token_ids) - unchanged) * math.exp(bound)
    most = max(rest, 0.0) + _MASS_ROUNDING
    least = rest - _MASS_ROUNDING - elsewhere if top_k.most == -np.inf else 0.0
    weights = np.exp(np.minimum((changed - largest) * sharpness, _MOST_EXPONENT))
    limit = unchanged * _exp((bound - largest) * sharpness)
    bulk = min(_most_mass(most, unchanged, bound, sharpness, largest), limit)
    return Mass(min(bulk, _least_mass(least, unchanged, bound, sharpness, largest)), bulk, bound, changed, weights)


def _most_mass(rest: float, count: int, bound: float, sharpness: float, largest: float) -> float:
    if count == 0:
        return 0.0
    return _crowded(rest, bound, sharpness, largest) if sharpness >= 1 else _even(rest, count, sharpness, largest)


def _least_mass(rest: float, count: int, bound: float, sharpness: float, largest: float) -> float:
    if count == 0 or rest <= 0:
        return 0.0
    return _even(rest, count, sharpness, largest) if sharpness >= 1 else _crowded(rest, bound, sharpness, largest)


def _crowded(rest: float, bound: float, sharpness: float, largest: float) -> float:
    """Return ``R b^(a-1)`` over the weight of the largest: all of the mass at the bound."""
    return _exp(math.log(rest) + bound * (sharpness - 1) - largest * sharpness)


def _even(rest: float, count: int, sharpness: float, largest: float) -> float:
    """Return ``U (R / U)^a`` over the weight of the largest: the mass spread evenly."""
    return _exp(math.log(count) + sharpness * (math.log(rest / count) - largest))


def _exp(exponent: float) -> float:
    return math.exp(min(exponent, _MOST_EXPONENT))


def _at_least(bound: float) -> np.float32:
    """Return the least float32 that is no smaller."""
    nearest = np.float32(bound)
    return np.nextafter(nearest, _ALL) if nearest < bound else nearest
