"""The field of noise by which tokens are chosen: a number for each (seed, position, token), the same on every machine.

A token's noise is an arrival time, exponential with mean 1 and independent of all others. The token with the smallest
``arrival * exp(-logit)`` is a draw from the logits' softmax, and so is the argmax of ``logit - log(arrival)``: minus the
logarithm of an arrival is standard Gumbel noise.

This is version 2 (`slipstream.sampling.rule.SAMPLING_VERSION`). The field is drawn in blocks of `BLOCK` tokens, so that a few
numbers tell which of 128,000 tokens can win at all. The first of n independent arrivals is exponential with mean 1/n; which
token's it is is uniform; and the others come after it as if they began anew, for arrivals have no memory. So a block's first
arrival, its token, and the time of its second are drawn alone, and the others' only where a block has to be opened.

Words come from Philox4x64-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the key is
(seed, 0), the counter (1 + index / 4, position, domain, 0), and index modulo 4 picks one of the counter's four words. Always
computed on the CPU in float64, whatever device the logits come from, so that no device's logarithm changes a text.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from slipstream.sampling.compiled import compiled, multiply_high

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BLOCK = 64


class Domain(IntEnum):
    """What a word is for, so that no two uses ever share one."""

    FIRST = 0
    """How long one waits for a block's first token, and which it is. The index is the block's number."""
    SECOND = 1
    """How long one then waits for its second."""
    OTHERS = 2
    """How long one waits for a token of an opened block. The index is the token's id."""
    PROPOSAL = 3
    """The draft's own token under the ratio test."""
    ACCEPTANCE = 4
    """The ratio test's coin."""
    RECOVERY = 5
    """The token drawn after the ratio test has rejected one."""


# Compiled code knows no enumerations, and takes the type of a sum of a word and a plain integer for float64.
FIRST, _SECOND, _OTHERS = np.uint64(Domain.FIRST), np.uint64(Domain.SECOND), np.uint64(Domain.OTHERS)
_MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_WEYL = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_PLACE_MASK, _UNUSED_BITS = np.uint64(BLOCK - 1), np.uint64(12)
_FIRST_BIT, _ONE_BIT = np.uint64(2**63), np.uint64(1)
_LOG_BLOCK, _LOG_2 = math.log(BLOCK), math.log(2)
_ROUNDS = 10


@compiled
def four_words(seed: np.uint64, position: np.uint64, domain: np.uint64, index: int) -> tuple[np.uint64, ...]:
    """The words from ``index``, a multiple of four, on."""
    first, second, third, fourth = np.uint64(1 + index // 4), position, domain, np.uint64(0)
    key, other_key = seed, np.uint64(0)
    for _ in range(_ROUNDS):
        low, high = first * _MULTIPLIERS[0], multiply_high(first, _MULTIPLIERS[0])
        other_low, other_high = third * _MULTIPLIERS[1], multiply_high(third, _MULTIPLIERS[1])
        first, second, third, fourth = other_high ^ second ^ key, other_low, high ^ fourth ^ other_key, low
        key, other_key = key + _WEYL[0], other_key + _WEYL[1]
    return first, second, third, fourth


@compiled
def wait(word: np.uint64) -> float:
    """Exponential with mean 1, from a word's upper 52 bits."""
    return -math.log((np.float64(word >> _UNUSED_BITS) + 0.5) * 2.0**-52)


@compiled
def first_arrival(word: np.uint64) -> float:
    """When the first token of a block arrives, by the block's word."""
    return wait(word) / BLOCK


@compiled
def most_noise(word: np.uint64) -> float:
    """What minus the logarithm of a block's `first_arrival` is at most, without one: -log u is at least 1 - u, and that is more
    than 2^-(n + 1) where n is how many ones the word begins with. Near the largest word it may be less by rounding."""
    bound = _LOG_BLOCK + _LOG_2
    while word & _FIRST_BIT:
        bound += _LOG_2
        word = word << _ONE_BIT
    return bound


@compiled
def first_place(word: np.uint64) -> int:
    """Which of a block's tokens arrives first, by the block's word."""
    return np.int64(word & _PLACE_MASK)  # type: ignore[return-value] # numpy's integers are integers where this runs


@compiled
def second_arrival(seed: np.uint64, position: np.uint64, block: int, first: float) -> float:
    """When a block's second token arrives."""
    words = four_words(seed, position, _SECOND, block // 4 * 4)
    return first + wait(words[block % 4]) / (BLOCK - 1)


@compiled
def other_arrivals(seed: np.uint64, position: np.uint64, block: int, place: int, second: float, times: Floats) -> None:
    """Write when the tokens of a block arrive ``[BLOCK]``, but for the first of them, at ``place``: it is left as infinite.

    Of their exponential times the smallest is taken off: what is left of each is again exponential, and the token whose time
    that was comes second.
    """
    least = np.inf
    for group in range(0, BLOCK, 4):
        words = four_words(seed, position, _OTHERS, block * BLOCK + group)
        for offset in range(4):
            times[group + offset] = np.inf if group + offset == place else wait(words[offset])
            least = min(least, times[group + offset])
    for token in range(BLOCK):
        times[token] += second - least


@compiled
def _fill(seed: np.uint64, position: np.uint64, domain: np.uint64, start: int, words: Words) -> None:
    for at in range(len(words)):
        words[at] = four_words(seed, position, domain, (start + at) // 4 * 4)[at % 4]


def random_words(seed: int, position: int, domain: Domain, start: int, count: int) -> Words:
    """``count`` words from index ``start``, a multiple of four, on."""
    words = np.empty(count, dtype=np.uint64)
    _fill(np.uint64(seed), np.uint64(position), np.uint64(domain), start, words)
    return words


def coin(seed: int, position: int, domain: Domain) -> float:
    """One number in (0, 1), from the upper 52 bits of the first word."""
    bits = int(random_words(seed, position, domain, 0, 1)[0]) >> int(_UNUSED_BITS)
    return (bits + 0.5) * 2.0**-52
