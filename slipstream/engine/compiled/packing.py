"""Matrices as products read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream.engine.compiled.block_types import (
    BLOCK,
    BLOCK_TYPES,
    STEP_BYTES,
    STEP_INPUTS,
    STEPS,
    BlockType,
)
from slipstream.engine.compiled.gguf_blocks import Blocks, blocks_of
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.memory import aligned_zeros
from slipstream.engine.compiled.products import TILE_COLUMNS, WIDENED
from slipstream.engine.compiled.quantised import INPUT_BYTES

_OUTPUTS_AT_ONCE = 1024
"""Outputs that are packed together. What that needs beside the matrix does not grow with it."""

_LOW, _HIGH = np.uint8(15), np.uint8(4)


class Packed(NamedTuple):
    """A matrix in memory. The record `records.MATRIX` tells compiled code about it."""

    kind: str
    """Kind of the tiles that read it: "float", "half", "bf16", "wide_bf16" or a `BlockType`'s
    name."""
    data: np.ndarray
    """``[outputs / 16, ...]``, with outputs that fill up a tile."""
    steps: int
    """Steps of a sum, as tiles count them."""
    row_bytes: int
    """Bytes of a row of inputs."""

    @property
    def outputs(self) -> int:
        """Outputs, with those that fill it up."""
        return len(self.data) * LANES

    @property
    def is_quantised(self) -> bool:
        """True if inputs are quantised for it."""
        return self.kind in BLOCK_TYPES

    @property
    def column_bytes(self) -> int:
        """Bytes of sixteen outputs."""
        return self.data.nbytes // len(self.data)


def in_lanes(weight: np.ndarray) -> np.ndarray:
    """Return a matrix ``[outputs, inputs]`` as products read it: ``[outputs / 16, inputs, 16, 1]``
    in float32 and float16, ``[outputs / 16, inputs / 2, 16, 2]`` in bfloat16 (its bits as uint16).
    Outputs are filled up with zeros to whole tiles."""
    outputs, inputs = weight.shape
    at_once = 2 if weight.dtype == np.uint16 else 1
    whole, rest = divmod(outputs, LANES)
    groups = -(-outputs // TILE_COLUMNS) * TILE_COLUMNS // LANES
    packed = aligned_zeros((groups, inputs // at_once, LANES, at_once), weight.dtype)
    blocks = weight[: whole * LANES].reshape(whole, LANES, inputs // at_once, at_once)
    packed[:whole] = blocks.transpose(0, 2, 1, 3)
    if rest:
        packed[whole, :, :rest] = weight[-rest:].reshape(rest, inputs // at_once, at_once).transpose(1, 0, 2)
    return packed


def packed_numbers(weight: np.ndarray, *, wide: bool = False) -> Packed:
    """Pack a matrix ``[outputs, inputs]`` of float32, float16 or bfloat16 (its bits as uint16).
    ``wide``: inputs are float32 even if it is bfloat16."""
    inputs, width = weight.shape[1], weight.dtype.itemsize
    if weight.dtype != np.uint16:
        return Packed("float" if width == 4 else "half", in_lanes(weight), inputs * width // 4, 4 * inputs)
    row_bytes = (4 if wide or WIDENED else 2) * inputs
    return Packed("wide_bf16" if wide else "bf16", in_lanes(weight), inputs // 2, row_bytes)


def packed_blocks(kind: BlockType, rows: np.ndarray) -> Packed:
    """Pack rows ``[outputs, bytes]`` of a GGUF file. Zeros fill them up to whole tiles."""
    missing = -len(rows) % TILE_COLUMNS
    inputs = blocks_of(kind.name, rows[:1]).quants.shape[1]
    shape = (len(rows) + missing) // LANES, inputs // kind.group_inputs, kind.group_bytes
    data = aligned_zeros(shape, np.uint8)
    for first in range(0, len(rows), _OUTPUTS_AT_ONCE):
        some = rows[first : first + _OUTPUTS_AT_ONCE]
        if missing and first + len(some) == len(rows):
            some = np.concatenate([some, np.zeros((missing, rows.shape[1]), rows.dtype)])
        _pack(kind, blocks_of(kind.name, some), data[first // LANES : (first + len(some)) // LANES])
    return Packed(kind.name, data, shape[1], inputs // BLOCK * INPUT_BYTES)


def _pack(kind: BlockType, blocks: Blocks, data: np.ndarray) -> None:
    columns, groups, _ = data.shape
    steps = blocks.quants.reshape(columns, LANES, groups, kind.blocks, STEPS, STEP_INPUTS)
    by_step = steps.transpose(0, 2, 3, 4, 1, 5).reshape(columns, groups, kind.blocks, STEPS, STEP_BYTES)
    data[..., : kind.scales_place] = _joined(kind.bits, by_step).reshape(columns, groups, -1)
    for whole, place in ((blocks.block_scales, kind.scales_place), (blocks.block_minima, kind.minima_place)):
        if whole is not None:
            each = whole.reshape(columns, LANES, groups, -1).transpose(0, 2, 3, 1).reshape(columns, groups, -1)
            data[..., place : place + each.shape[-1]] = each.view(np.uint8)
    halves = [each for each in (blocks.scales, blocks.minima) if each is not None]
    for number, half in enumerate(halves):
        place = kind.factors_place + 2 * LANES * number
        by_group = np.ascontiguousarray(half.reshape(columns, LANES, groups).transpose(0, 2, 1))
        data[..., place : place + 2 * LANES] = by_group.view(np.uint8)


def _joined(bits: int, steps: np.ndarray) -> np.ndarray:
    """Return the quants ``[..., 8 steps, 64]`` as `quantised` unpacks them: ``[..., bits, 64]``."""
    if bits == 8:
        return steps
    low = steps & _LOW
    parts = [low[..., ::2, :] | low[..., 1::2, :] << _HIGH]
    if rest := bits - 4:
        count = 8 // rest
        high = (steps >> _HIGH).reshape(*steps.shape[:-2], STEPS // count, count, STEP_BYTES)
        shifts = (rest * np.arange(count, dtype=np.uint8))[:, np.newaxis]
        parts.append(np.bitwise_or.reduce(high << shifts, axis=-2))
    return np.concatenate(parts, axis=-2)
