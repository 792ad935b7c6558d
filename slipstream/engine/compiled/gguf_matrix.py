"""Matrices of GGUF files, whose rows keep the bits of their type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from slipstream.engine.compiled.block_types import BLOCK_TYPES
from slipstream.engine.compiled.decoder import NotCompiledError, alternating
from slipstream.engine.compiled.gguf_tensors import Tensor
from slipstream.engine.compiled.packing import Packed, packed_blocks, packed_numbers

TYPES = ("F32", "F16", "BF16", *(name.upper() for name in BLOCK_TYPES))
"""Types that products read."""

_NUMBERS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


class Matrix(NamedTuple):
    """A matrix in a type of GGUF's. Its ``rows`` are float32, float16 or bfloat16 (its bits as
    uint16) ``[outputs, inputs]``, or the bytes of blocks ``[outputs, bytes]``."""

    type: str
    rows: np.ndarray

    @property
    def is_quantised(self) -> bool:
        """True if its rows are blocks."""
        return self.type not in _NUMBERS

    def packed(self, *, wide: bool) -> Packed:
        """Pack it as products read it. ``wide``: inputs are float32 even where it is bfloat16."""
        if self.is_quantised:
            return packed_blocks(BLOCK_TYPES[self.type.lower()], self.rows)
        return packed_numbers(self.rows, wide=wide)

    def dequantised(self) -> Matrix:
        """Return the same in float32."""
        return Matrix("F32", dequantize(self.rows.view(np.uint8), GGMLQuantizationType[self.type]))


def matrix_of(tensor: Tensor) -> Matrix:
    """Return a tensor that is a matrix, as a copy: otherwise the whole file would stay mapped."""
    kind = tensor.type.name
    return Matrix(kind, np.array(tensor.data).view(_NUMBERS.get(kind, np.uint8)))


def dequantised(tensor: Tensor) -> np.ndarray:
    """Return a tensor of any type as float32. NotCompiledError if gguf cannot dequantise it."""
    try:
        return np.array(dequantize(tensor.data, tensor.type))
    except NotImplementedError as error:
        raise NotCompiledError(f"its {tensor.name} is {tensor.type.name}, which cannot be dequantised") from error


def joined(matrices: Sequence[Matrix]) -> list[Matrix]:
    """Return matrices one after another, neighbours of one type as one."""
    parts = [matrices[0]]
    for matrix in matrices[1:]:
        if matrix.type == parts[-1].type:
            parts[-1] = Matrix(matrix.type, np.concatenate([parts[-1].rows, matrix.rows]))
        else:
            parts.append(matrix)
    return parts


def gated(gate: Matrix, up: Matrix) -> Matrix:
    """Return both with sixteen outputs of one and sixteen of the other in turn. They are
    dequantised if their types differ, because a tile has both."""
    if gate.type != up.type:
        gate, up = gate.dequantised(), up.dequantised()
    return Matrix(gate.type, alternating(gate.rows, up.rows))
