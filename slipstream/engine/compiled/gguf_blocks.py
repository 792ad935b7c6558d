"""Reads the blocks of quantised matrices in GGUF files. ggml-quants.c has the formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_LOW, _HIGH = np.uint8(15), np.uint8(4)
_SIX = np.uint8(63)


class Blocks(NamedTuple):
    """Quantised weights ``[outputs, inputs]`` in numbers: ``quants`` in uint8, and by groups
    ``scales`` and ``minima`` ``[outputs, groups]`` in float16. Groups of several blocks have whole
    numbers too: ``block_scales`` ``[outputs, groups, blocks, scales]`` in int8, ``block_minima``
    ``[outputs, groups, blocks]`` in uint8."""

    quants: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None = None
    block_scales: np.ndarray | None = None
    block_minima: np.ndarray | None = None


def blocks_of(name: str, rows: np.ndarray) -> Blocks:
    """Return rows ``[outputs, bytes]`` of a type in numbers."""
    size, read = _TYPES[name]
    return read(rows.reshape(len(rows), -1, size))


def _halves(blocks: np.ndarray, place: int) -> np.ndarray:
    """The float16 at a place of each block."""
    return np.ascontiguousarray(blocks[..., place : place + 2]).view(np.float16)[..., 0]


def _rows(quants: np.ndarray) -> np.ndarray:
    return quants.reshape(len(quants), -1)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """The lower four bits of all bytes, and then the higher four."""
    parts: np.ndarray = np.concatenate([packed & _LOW, packed >> _HIGH], axis=-1)
    return parts


def _eight(blocks: np.ndarray) -> Blocks:
    """A scale, and 32 numbers in int8."""
    return Blocks(_rows(blocks[..., 2:] ^ np.uint8(128)), _halves(blocks, 0))


def _four(blocks: np.ndarray) -> Blocks:
    """A scale, and 16 bytes: of inputs 0 to 15 in their lower bits, of 16 to 31 in the higher."""
    return Blocks(_rows(_nibbles(blocks[..., 2:])), _halves(blocks, 0))


def _four_with_minimum(blocks: np.ndarray) -> Blocks:
    return Blocks(_rows(_nibbles(blocks[..., 4:])), _halves(blocks, 0), _halves(blocks, 2))


def _five(blocks: np.ndarray) -> Blocks:
    """A scale, four bytes of highest bits, and 16 bytes of the lower four."""
    return Blocks(_rows(_fives(blocks[..., 2:])), _halves(blocks, 0))


def _five_with_minimum(blocks: np.ndarray) -> Blocks:
    return Blocks(_rows(_fives(blocks[..., 4:])), _halves(blocks, 0), _halves(blocks, 2))


def _fives(packed: np.ndarray) -> np.ndarray:
    high = np.unpackbits(packed[..., :4], axis=-1, bitorder="little")
    quants: np.ndarray = _nibbles(packed[..., 4:]) | high << _HIGH
    return quants


def _k_factors(blocks: np.ndarray, quants: np.ndarray) -> Blocks:
    """A scale, a minimum, and of each of eight blocks both in six bits."""
    packed = blocks[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & _SIX, third & _LOW | first >> np.uint8(6) << _HIGH], axis=-1)
    minima = np.concatenate([second & _SIX, third >> _HIGH | second >> np.uint8(6) << _HIGH], axis=-1)
    # They are subtracted there.
    return Blocks(_rows(quants), _halves(blocks, 0), -_halves(blocks, 2), scales[..., np.newaxis].view(np.int8), minima)


def _four_k(blocks: np.ndarray) -> Blocks:
    """32 bytes for each two blocks, which are those of the lower bits and of the higher."""
    return _k_factors(blocks, _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)))


def _five_k(blocks: np.ndarray) -> Blocks:
    """The same after 32 bytes of highest bits, each of which has one of every block."""
    low = _nibbles(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32)).reshape(*blocks.shape[:2], 8, 32)
    high = np.unpackbits(blocks[..., np.newaxis, 16:48], axis=-2, count=8, bitorder="little")
    return _k_factors(blocks, low | high << _HIGH)


def _six_k(blocks: np.ndarray) -> Blocks:
    """Groups of 128 inputs: 64 bytes of lower four bits and 32 of the highest two. Then 16 scales
    in int8, and a scale of all."""
    shape = blocks.shape[:2]
    low = _nibbles(blocks[..., :128].reshape(*shape, 2, 64)).reshape(*shape, 2, 4, 32)
    packed = blocks[..., 128:192].reshape(*shape, 2, 1, 32)
    high = packed >> np.array([0, 2, 4, 6], np.uint8)[:, np.newaxis] & np.uint8(3)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).reshape(*shape, 8, 2)
    return Blocks(_rows(low | high << _HIGH), _halves(blocks, 208), block_scales=scales)


_TYPES: dict[str, tuple[int, Callable[[np.ndarray], Blocks]]] = {
    "q8_0": (34, _eight),
    "q4_0": (18, _four),
    "q4_1": (20, _four_with_minimum),
    "q5_0": (22, _five),
    "q5_1": (24, _five_with_minimum),
    "q4_k": (144, _four_k),
    "q5_k": (176, _five_k),
    "q6_k": (210, _six_k),
}
"""Bytes of a block, or of a group of eight, and how to read it."""
