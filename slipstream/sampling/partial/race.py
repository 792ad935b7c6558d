"""The race of a row's tokens under the noise that is known beforehand."""

from __future__ import annotations

import math

import numpy as np

from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.coupled import choose_coupled, choose_likeliest
from slipstream.sampling.kernel import Floats, Floats32, Ints, draw, find_likeliest
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule, numbers_of

_NO_LOGPROBS: Floats = np.empty(0)
_NOISE_SLACK = 4.0
"""In noise: of a vocabulary the ``count`` largest lie about log(count) apart, and hardly ever so
much more."""


def winner(values: Floats32, rule: SamplingRule, position: int) -> Choice:
    """Return the choice among ``values`` ``[vocabulary]`` at ``position``, with nothing of a rule
    but its temperature and seed. The largest value is finite."""
    blocked = BlockedLogits(values[np.newaxis])
    if rule.temperature == 0:
        return choose_likeliest(blocked)[0]
    return choose_coupled(blocked, [_plain(rule)], [position])[0]


def best(values: Floats32, rule: SamplingRule, position: int, count: int, slack: float) -> tuple[Ints, Floats]:
    """Return the ``count`` tokens of the largest scores, best first, and the scores; fewer where
    fewer come within ``slack`` of the best. The largest value is finite."""
    blocked = BlockedLogits(values[np.newaxis])
    tokens, scores = np.empty((1, max(2, count)), dtype=np.int64), np.empty((1, max(2, count)))
    if rule.temperature == 0:
        find_likeliest(blocked.stored, blocked.maxima, blocked.indices, tokens, scores, _NO_LOGPROBS, 0, 1)
    else:
        numbers, positions = numbers_of([_plain(rule)]), np.array([position], dtype=np.uint64)
        draw(
            blocked.stored,
            blocked.maxima,
            blocked.indices,
            numbers,
            positions,
            slack,
            tokens,
            scores,
            _NO_LOGPROBS,
            0,
            1,
        )
    near = (scores[0] >= scores[0, 0] - slack) & np.isfinite(scores[0])
    return tokens[0, near][:count], scores[0, near][:count]


def noisiest(vocabulary_size: int, rule: SamplingRule, position: int, count: int) -> Ints:
    """Return up to ``count`` tokens with the largest noise at a position, the largest first."""
    if count == 0 or rule.temperature == 0:
        return np.empty(0, dtype=np.int64)
    flat: Floats32 = np.zeros(vocabulary_size, dtype=np.float32)
    return best(flat, rule, position, min(count, vocabulary_size), math.log(count) + _NOISE_SLACK)[0]


def _plain(rule: SamplingRule) -> SamplingRule:
    return SamplingRule(temperature=rule.temperature, seed=rule.seed)
