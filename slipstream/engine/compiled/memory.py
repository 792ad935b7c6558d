"""Memory that compiled code reads and writes: arrays that begin at a line of a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_LINE = 64
"""Bytes of a cache's line."""


def aligned_zeros(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return an array of zeros that begins at a multiple of 64 bytes. Memory that nothing has
    touched yet costs nothing."""
    byte_count = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(byte_count + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    aligned: np.ndarray = raw[start : start + byte_count].view(dtype).reshape(shape)
    return aligned


def aligned_copy(values: np.ndarray) -> np.ndarray:
    """Return a copy in one piece that begins at a multiple of 64 bytes."""
    copy = aligned_zeros(values.shape, values.dtype)
    copy[...] = values
    return copy
