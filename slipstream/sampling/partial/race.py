"""The race of a row's tokens under the noise that is known beforehand."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from slipstream.sampling.blocks import BlockedLogits, block_count
from slipstream.sampling.coupled import choose_coupled, choose_likeliest
from slipstream.sampling.kernel import BLOCK, Domain, Floats, Floats32, Ints, draw, find_likeliest, random_words
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule, numbers_of

_NO_LOGPROBS: Floats = np.empty(0)
_TAIL_SLACK = 1.0
"""In scores: of many tokens with one bound the ``count`` best lie about log(count) apart, and not
much more."""


def winner(values: Floats32, rule: SamplingRule, position: int) -> Choice:
    """Return the choice among ``values`` ``[vocabulary]`` at ``position``, with nothing of a rule
    but its temperature and seed. The largest value is finite."""
    blocked = BlockedLogits(values[np.newaxis])
    if rule.temperature == 0:
        return choose_likeliest(blocked)[0]
    return choose_coupled(blocked, [_plain(rule.temperature, rule.seed)], [position])[0]


def best(values: Floats32, rule: SamplingRule, position: int, count: int, slack: float) -> tuple[Ints, Floats]:
    """Return the ``count`` tokens of the largest scores, best first, and the scores; fewer where
    fewer come within ``slack`` of the best, or where they lie far apart. The largest value is
    finite."""
    slack = min(slack, math.log(count) + _TAIL_SLACK)
    blocked = BlockedLogits(values[np.newaxis])
    tokens, scores = np.empty((1, max(2, count)), dtype=np.int64), np.empty((1, max(2, count)))
    if rule.temperature == 0:
        find_likeliest(blocked.stored, blocked.maxima, blocked.indices, tokens, scores, _NO_LOGPROBS, 0, 1)
    else:
        numbers, positions = numbers_of([_plain(rule.temperature, rule.seed)]), np.array([position], dtype=np.uint64)
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
    """Return up to ``count`` tokens with large noise at a position, the largest first.

    They are the first arrivals of the blocks that begin earliest: by the blocks' words alone, of
    which a larger one is an earlier arrival. A block's second arrival is hardly ever among the
    first few.
    """
    if count == 0 or rule.temperature == 0:
        return np.empty(0, dtype=np.int64)
    words = random_words(rule.seed, position, Domain.FIRST, 0, block_count(vocabulary_size))
    blocks = np.argsort(words)[::-1][:count]
    tokens = blocks * BLOCK + (words[blocks] & np.uint64(BLOCK - 1)).astype(np.int64)
    found: Ints = tokens[tokens < vocabulary_size]
    return found


@lru_cache(maxsize=1024)
def _plain(temperature: float, seed: int) -> SamplingRule:
    return SamplingRule(temperature=temperature, seed=seed)
