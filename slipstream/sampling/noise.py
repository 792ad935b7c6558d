"""Counter-based Gumbel noise: the same (seed, position, token) gives the same number on every machine.

Philox4x32-10 is from Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Only numpy:
the few candidates that need noise are computed on the CPU in float64, whatever device holds the logits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # each element holds 32 bits

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10

_UNIFORM_BITS = 24
_SMALLEST_UNIFORM = 2.0 ** -(_UNIFORM_BITS + 1)
GUMBEL_SPAN = -math.log(-math.log1p(-_SMALLEST_UNIFORM)) + math.log(-math.log(_SMALLEST_UNIFORM))
"""Largest minus smallest noise (20.2): a token further than this below the largest logit cannot win."""


def philox4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10: four 32-bit words of noise for each 128-bit counter and 64-bit key, elementwise."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _HALF) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def uniform(seeds: Words, positions: Words, tokens: Words) -> NDArray[np.float64]:
    """``u`` in (0, 1) with 24 bits, one for each (seed, position, token): three arrays of one length.

    The key is the seed; the counter is (token / 4, position, 0, 0); the token's two low bits pick one of the four words.
    """
    zero = np.zeros_like(tokens)
    words = philox4x32(
        (tokens >> np.uint64(2), positions & _LOW, positions >> _HALF, zero), (seeds & _LOW, seeds >> _HALF)
    )
    lane = (tokens & np.uint64(3)).astype(np.intp)
    bits = np.stack(words)[lane, np.arange(len(tokens))] >> np.uint64(32 - _UNIFORM_BITS)
    return (bits.astype(np.float64) + 0.5) * 2.0**-_UNIFORM_BITS


def gumbel(seeds: Words, positions: Words, tokens: Words) -> NDArray[np.float64]:
    """Standard Gumbel noise ``-log(-log u)``: the argmax of logits plus this is a draw from their softmax."""
    return -np.log(-np.log(uniform(seeds, positions, tokens)))
