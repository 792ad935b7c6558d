"""Counter-based Gumbel noise: the same (seed, position, token) gives the same number on every machine.

Philox4x32-10 is from Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Only numpy:
the few candidates that need noise are computed on the CPU in float64, whatever device holds the logits.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # each element holds 32 bits

# Words 0 and 2 of the counter are multiplied, words 1 and 3 are not: each pair is one array ``[2, n]``.
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10

_UNIFORM_BITS = 24
_SMALLEST_UNIFORM = 2.0 ** -(_UNIFORM_BITS + 1)
GUMBEL_SPAN = -math.log(-math.log1p(-_SMALLEST_UNIFORM)) + math.log(-math.log(_SMALLEST_UNIFORM))
"""Largest minus smallest noise (20.2): a token further than this below the largest logit cannot win."""


class Domain(IntEnum):
    """What the noise is for: the counter's last word, so that no two uses ever share a number."""

    CHOICE = 0
    """The token at a position, in coupled sampling by draft and target alike."""
    PROPOSAL = 1
    """The draft's own token under the ratio test."""
    ACCEPTANCE = 2
    """The ratio test's coin."""
    RECOVERY = 3
    """The token drawn after the ratio test has rejected one."""


def philox4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10: four 32-bit words of noise for each 128-bit counter and 64-bit key, elementwise."""
    multiplied = np.stack((counter[0], counter[2]))
    others = np.stack((counter[1], counter[3]))
    keys = np.stack(key)
    for _ in range(_ROUNDS):
        product = multiplied * _MULTIPLIERS
        multiplied = (product >> _HALF)[::-1] ^ others ^ keys
        others = (product & _LOW)[::-1]
        keys = (keys + _KEY_STEPS) & _LOW
    return multiplied[0], others[0], multiplied[1], others[1]


def uniform(seeds: Words, positions: Words, tokens: Words, domain: Domain = Domain.CHOICE) -> NDArray[np.float64]:
    """``u`` in (0, 1) with 24 bits, one for each (seed, position, token): three arrays of one length.

    The key is the seed; the counter is (token / 4, position in two words, domain); the token's two low bits pick one of the
    four words.
    """
    words = philox4x32(
        (tokens >> np.uint64(2), positions & _LOW, positions >> _HALF, np.full_like(tokens, domain)),
        (seeds & _LOW, seeds >> _HALF),
    )
    lane = (tokens & np.uint64(3)).astype(np.intp)
    bits = np.stack(words)[lane, np.arange(len(tokens))] >> np.uint64(32 - _UNIFORM_BITS)
    return (bits.astype(np.float64) + 0.5) * 2.0**-_UNIFORM_BITS


def gumbel(seeds: Words, positions: Words, tokens: Words, domain: Domain = Domain.CHOICE) -> NDArray[np.float64]:
    """Standard Gumbel noise ``-log(-log u)``: the argmax of logits plus this is a draw from their softmax."""
    return -np.log(-np.log(uniform(seeds, positions, tokens, domain)))
