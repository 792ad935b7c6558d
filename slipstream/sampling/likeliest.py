"""The likeliest tokens of a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.sampling.kernel import BLOCK, Floats32


def likeliest(row: Floats32, count: int) -> NDArray[np.int64]:
    """Return the ids of a row's ``count`` largest numbers, the largest first, the lower id first
    among equals. The row has at least as many, and no NaN."""
    whole = len(row) // BLOCK
    if whole >= count:
        # So many blocks have a number of at least this size: few tokens are left to be sorted.
        maxima = row[: whole * BLOCK].reshape(whole, BLOCK).max(axis=1)
        near = np.flatnonzero(row >= np.partition(maxima, -count)[-count])
    else:
        near = np.flatnonzero(row >= np.partition(row, -count)[-count])
    found: NDArray[np.int64] = near[np.argsort(-row[near], kind="stable")[:count]]
    return found
