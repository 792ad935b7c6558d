"""Matrices of heads, and the small functions around them. NumPy alone."""

from __future__ import annotations

import numpy as np

from slipstream.sampling.kernel import Floats32


class Matrix:
    """A weight ``[outputs, inputs]``."""

    def __init__(self, weight: Floats32) -> None:
        self._weight: Floats32 = np.ascontiguousarray(weight)

    def times(self, rows: Floats32) -> Floats32:
        """Return the outputs ``[rows, outputs]`` of rows ``[rows, inputs]``."""
        if len(rows) == 1:  # twice as fast as a product of matrices
            alone: Floats32 = (self._weight @ rows[0])[np.newaxis]
            return alone
        outputs: Floats32 = rows @ self._weight.T
        return outputs


def normed(rows: Floats32, weight: Floats32, epsilon: float) -> Floats32:
    """Return rows divided by the root of their mean square, times a weight."""
    squares = np.einsum("...i,...i->...", rows, rows)[..., np.newaxis]
    result: Floats32 = rows * (1 / np.sqrt(squares / rows.shape[-1] + epsilon)) * weight
    return result


def silu(rows: Floats32) -> Floats32:
    """Return x / (1 + exp(-x)) of each number."""
    with np.errstate(over="ignore"):
        result: Floats32 = rows / (1 + np.exp(-rows))
    return result


def softmax(rows: Floats32) -> Floats32:
    """Return the softmax over the last dimension."""
    weights = np.exp(rows - rows.max(axis=-1, keepdims=True))
    result: Floats32 = weights / weights.sum(axis=-1, keepdims=True)
    return result


def turned(rows: Floats32, turns: tuple[Floats32, Floats32]) -> Floats32:
    """Return queries or keys ``[rows, heads, size]`` turned by cosines and sines ``[rows, 1, size /
    2]`` of their positions (Su et al. 2021)."""
    cosines, sines = turns
    first, second = np.split(rows, 2, axis=-1)
    result: Floats32 = np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return result
