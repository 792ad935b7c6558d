"""Matrices of GGUF files, whose rows keep the bits of their type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from slipstream.engine.compiled.block_types import BLOCK_TYPES
from slipstream.engine.compiled.decoder import NotCompiledError, alternating
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
        return Matrix("F32", dequantize(self.rows, GGMLQuantizationType[self.type]))


def type_of(tensor: Any) -> str:
    """Return the name of a tensor's type."""
    return str(GGMLQuantizationType(tensor.tensor_type).name)


def matrix_of(tensor: Any) -> Matrix:
    """Return a tensor that is a matrix, as a copy: otherwise the whole file would stay mapped."""
    kind = type_of(tensor)
    rows = np.array(tensor.data).reshape(int(tensor.shape[-1]), -1)
    return Matrix(kind, rows.view(_NUMBERS[kind]) if kind in _NUMBERS else rows)


def dequantised(tensor: Any) -> np.ndarray:
    """Return a tensor of any type as float32. NotCompiledError if gguf does not know the type."""
    try:
        return np.array(dequantize(tensor.data, tensor.tensor_type))
    except NotImplementedError as error:
        raise NotCompiledError(f"its {tensor.name} is {type_of(tensor)}, which cannot be dequantised") from error


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
