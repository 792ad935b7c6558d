"""Matrices of heads, and the small functions around them. A matrix is bfloat16 and is multiplied by
the tiles of compiled forwards, on one thread."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numba import types

from slipstream.compilation import compile_shared
from slipstream.engine.compiled.keeping import keep, made_of, unit
from slipstream.engine.compiled.packing import packed_numbers
from slipstream.engine.compiled.products import TILE_COLUMNS, TILE_ROWS
from slipstream.engine.compiled.safetensors_file import rounded
from slipstream.engine.compiled.tiles import call_tile, place_of
from slipstream.sampling.kernel import Floats32, compiled_folder

_TILE = "wide_bf16_products"
_TILE_BYTES = 4 * TILE_COLUMNS
TABLE = np.zeros(1, np.int64)
"""A table of one block, as tiles read it: the matrix is in one piece."""


class MatrixPlace(NamedTuple):
    """The address and the sizes of a matrix, for compiled code."""

    place: int
    column_bytes: int
    steps: int
    tiles: int


def tile_place() -> int:
    """Return the address of the tile that multiplies all matrices."""
    return place_of(_TILE)


class Matrix:
    """A matrix ``[outputs, inputs]`` of an even number of inputs, rounded to bfloat16."""

    def __init__(self, weight: Floats32) -> None:
        """The first one on a machine compiles for some seconds."""
        self._outputs = len(weight)
        self._packed = packed_numbers(rounded(weight), wide=True)
        packed = self._packed
        compile_shared([unit(_TILE, partial(place_of, _TILE)), unit("heads", _multiply)], compiled_folder())
        self.told = MatrixPlace(
            packed.data.ctypes.data, packed.column_bytes, packed.steps, packed.outputs // TILE_COLUMNS
        )

    def times(self, rows: Floats32) -> Floats32:
        """Return the outputs ``[rows, outputs]`` of rows ``[rows, inputs]``."""
        rows = np.ascontiguousarray(rows, np.float32)
        outputs = np.empty((len(rows), self._packed.outputs), np.float32)
        _multiply()(
            tile_place(),
            *self.told,
            TABLE.ctypes.data,
            rows.ctypes.data,
            len(rows),
            self._packed.row_bytes,
            outputs.ctypes.data,
            4 * self._packed.outputs,
        )
        return outputs[:, : self._outputs]


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


def turned(rows: Floats32, turns: Floats32) -> Floats32:
    """Return queries or keys ``[rows, heads, size]`` turned by the cosines and sines ``[rows,
    size]`` of their positions (Su et al. 2021)."""
    cosines, sines = np.split(turns[:, np.newaxis], 2, axis=-1)
    first, second = np.split(rows, 2, axis=-1)
    result: Floats32 = np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return result


def _entry_of(made_of: str) -> Callable[..., Any]:
    def entry(
        tile: Any,
        weights: Any,
        column_bytes: Any,
        steps: Any,
        tiles: Any,
        table: Any,
        inputs: Any,
        rows: Any,
        row_bytes: Any,
        outputs: Any,
        output_bytes: Any,
    ) -> None:
        made_of  # noqa: B018 # in the closure, so that Numba tells one from another
        for index in range(tiles):
            for row in range(0, rows, TILE_ROWS):
                call_tile(
                    tile,
                    min(TILE_ROWS, rows - row),
                    inputs + row * row_bytes,
                    row_bytes,
                    weights + index * 2 * column_bytes,
                    column_bytes,
                    steps,
                    table,
                    1,
                    0,
                    outputs + row * output_bytes + index * _TILE_BYTES,
                    output_bytes,
                )

    return entry


@functools.cache
def _multiply() -> Callable[..., None]:
    kept = keep(types.void(*[types.int64] * 11), _entry_of(made_of()))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 11)(kept.address)
    function.kept = kept  # type: ignore[attr-defined] # as long as it may be called
    return cast(Callable[..., None], function)
