"""The field of noise by which tokens are chosen: a number for each (seed, position, token), the same on every machine.

A token's noise is an arrival time, exponential with mean 1 and independent of all others. The token with the smallest
``arrival * exp(-logit)`` is a draw from the logits' softmax, and so is the argmax of ``logit - log(arrival)``: minus the
logarithm of an arrival is standard Gumbel noise.

This is version 2 (`slipstream.sampling.rule.SAMPLING_VERSION`). The field is drawn in blocks of `BLOCK` tokens, so that a few
numbers tell which of 128,000 tokens can win at all. The first of n independent arrivals is exponential with mean 1/n; which
token's it is is uniform; and the others come after it as if they began anew, for arrivals have no memory. So a block's first
arrival, its token, and the time of its second are drawn alone, and the others' only where a block has to be opened.

Words come from numpy's Philox4x64-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the
key is (seed, 0), the counter (1 + index / 4, position, domain, 0), and index modulo 4 picks one of the counter's four words.
Always computed on the CPU in float64, whatever device holds the logits, so that no device's logarithm changes a text.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BLOCK = 64

_UNIFORM_BITS = 52
_PLACE_MASK = np.uint64(BLOCK - 1)


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


class _Source(threading.local):
    """A generator for each thread, for making one takes longer than a draw."""

    def __init__(self) -> None:
        self._generator = np.random.Philox(key=0)
        self._counter = np.zeros(4, dtype=np.uint64)
        self._key = np.zeros(2, dtype=np.uint64)
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": self._key},
            "buffer": np.zeros(4, dtype=np.uint64),
            "buffer_pos": 4,  # used up: the next word is the next counter's first
            "has_uint32": 0,
            "uinteger": 0,
        }

    def words(self, seed: int, position: int, domain: Domain, start: int, count: int) -> Words:
        """``count`` words from index ``start``, a multiple of four, on."""
        self._key[0] = seed
        self._counter[0] = start // 4  # the generator adds one before it draws
        self._counter[1] = position
        self._counter[2] = domain
        self._generator.state = self._state
        words: Words = self._generator.random_raw(count)
        return words


random_words = _Source().words
"""Random words by (seed, position, domain, index)."""


def _uniform(words: Words) -> Floats:
    """In (0, 1), from a word's upper bits."""
    uniform = (words >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-_UNIFORM_BITS
    return uniform


@dataclass(frozen=True, slots=True)
class Beginnings:
    """How blocks begin: when their ``first`` token arrives, its ``place`` in the block, and when the ``second`` does.

    All of one shape, ``[rows, blocks]`` or ``[blocks]``.
    """

    first: Floats
    place: Ints
    second: Floats

    def __getitem__(self, index: Any) -> Beginnings:
        return Beginnings(self.first[index], self.place[index], self.second[index])


def _waits(words: Words) -> Floats:
    """Exponential with mean 1, from words' upper bits."""
    waits = _uniform(words)
    np.log(waits, out=waits)
    return np.negative(waits, out=waits)


def beginnings(seeds: Sequence[int], positions: Sequence[int], block_count: int) -> Beginnings:
    """How the blocks of each (seed, position) begin, ``[rows, block_count]``."""
    words = np.empty((2, len(seeds), block_count), dtype=np.uint64)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        words[0, row] = random_words(seed, position, Domain.FIRST, 0, block_count)
        words[1, row] = random_words(seed, position, Domain.SECOND, 0, block_count)
    first, second = _waits(words)
    first /= BLOCK
    second /= BLOCK - 1
    second += first
    return Beginnings(first, (words[0] & _PLACE_MASK).view(np.int64), second)


def arrivals(seeds: Sequence[int], positions: Sequence[int], blocks: Sequence[int], beginning: Beginnings) -> Floats:
    """When each token of some blocks arrives, ``[blocks, BLOCK]``."""
    words = np.empty((len(blocks), BLOCK), dtype=np.uint64)
    for at, (seed, position, block) in enumerate(zip(seeds, positions, blocks, strict=True)):
        words[at] = random_words(seed, position, Domain.OTHERS, block * BLOCK, BLOCK)
    return _after(beginning, words)


def all_arrivals(seeds: Sequence[int], positions: Sequence[int], count: int) -> Floats:
    """When each of the tokens 0 to ``count`` - 1 arrives, ``[rows, count]``: every block opened."""
    block_count = -(-count // BLOCK)
    words = np.empty((len(seeds), block_count, BLOCK), dtype=np.uint64)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        words[row].reshape(-1)[:] = random_words(seed, position, Domain.OTHERS, 0, block_count * BLOCK)
    times = _after(beginnings(seeds, positions, block_count), words)
    return times.reshape(len(seeds), -1)[:, :count]


def _after(beginning: Beginnings, words: Words) -> Floats:
    """Arrival times from the words of blocks' tokens ``[..., BLOCK]``.

    Of the others' exponential times the smallest is taken off: what is left of each is again exponential, and the token whose
    time that was comes second.
    """
    times = _waits(words)
    place = beginning.place[..., None]
    np.put_along_axis(times, place, np.inf, axis=-1)
    times += (beginning.second - times.min(axis=-1))[..., None]
    np.put_along_axis(times, place, beginning.first[..., None], axis=-1)
    return times


def coin(seed: int, position: int, domain: Domain) -> float:
    """One number in (0, 1)."""
    return float(_uniform(random_words(seed, position, domain, 0, 1))[0])
