"""Rows of logits in blocks: what a search for the best token looks at before it looks at tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from slipstream.sampling.kernel import BLOCK, Floats32, Ints, Stored, find_maxima
from slipstream.sampling.sharing import share_rows

Logits = Stored
"""Rows of logits ``[rows, vocabulary]`` in one piece: float32, or the bits of bfloat16 as int16."""

LOOKED_AT = 2
"""Tokens that are searched in the time that it takes to weigh one; more where they lie in a
cache."""


class BlockedLogits:
    """``logits`` ``[rows, vocabulary]`` in one piece, float32 or the bits of bfloat16 as int16.

    ``stored`` and ``maxima`` are theirs, the latter ``[*, blocks]`` of blocks of 64 tokens, NaN
    where one of them is. Of these ``indices`` say which rows are meant.
    """

    def __init__(self, logits: Logits, maxima: Floats32 | None = None) -> None:
        """``maxima``: where a device has found them."""
        self.stored: Stored = logits if logits.dtype == np.int16 else logits.view(np.int32)
        row_count, size = self.stored.shape
        if maxima is None:
            self.maxima: Floats32 = np.empty((row_count, block_count(size)), dtype=np.float32)
            largest: Floats32 = np.empty(row_count, dtype=np.float32)
            find_some = partial(find_maxima, self.stored, self.maxima, largest)
            share_rows(find_some, row_count, max(1, size // LOOKED_AT))
        else:
            self.maxima, largest = maxima, maxima.max(axis=1, initial=-np.inf)
        self._largest: list[float] = largest.tolist()
        self.indices: Ints = _first(row_count)
        self._is_whole = True

    def floats(self) -> Floats32:
        """Return the rows as float32 ``[rows, vocabulary]``."""
        return floats_of(self.stored if self._is_whole else self.stored[self.indices])

    def largest(self) -> list[float]:
        """Return the largest logit of each row; NaN if any logit is."""
        return self._largest if self._is_whole else [self._largest[index] for index in self.indices]

    def subset(self, indices: Sequence[int]) -> BlockedLogits:
        """Return some of the rows, without copying them."""
        some = object.__new__(BlockedLogits)
        some.__dict__.update(self.__dict__, indices=self.indices[list(indices)], _is_whole=False)
        return some


def block_count(vocabulary_size: int) -> int:
    """Return the number of blocks. The last may have fewer tokens than others."""
    return -(-vocabulary_size // BLOCK)


def in_blocks(logits: Logits | BlockedLogits) -> BlockedLogits:
    """Return logits with the maxima of their blocks, which are found unless they are known."""
    return logits if isinstance(logits, BlockedLogits) else BlockedLogits(logits)


@lru_cache(maxsize=64)
def _first(count: int) -> Ints:
    return np.arange(count)


def floats_of(logits: Logits | BlockedLogits) -> Floats32:
    """Return logits as float32 ``[rows, vocabulary]``."""
    if isinstance(logits, BlockedLogits):
        return logits.floats()
    if logits.dtype == np.int16:
        return (logits.astype(np.int32) << 16).view(np.float32)
    return logits.view(np.float32)
