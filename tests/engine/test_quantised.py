"""Quantised matrices mean what gguf says, and their products are what their arithmetic says."""

from __future__ import annotations

import functools
from collections.abc import Callable

import gguf
import numba
import numpy as np
import pytest

from slipstream.engine.compiled import byte_dots, quantised
from slipstream.engine.compiled.block_types import BLOCK, BLOCK_TYPES
from slipstream.engine.compiled.gguf_blocks import blocks_of
from slipstream.engine.compiled.gguf_matrix import Matrix, gated, matrix_of
from slipstream.engine.compiled.gguf_tensors import Tensor
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.packing import Packed, packed_blocks
from slipstream.engine.compiled.tiles import SIGNATURE, tile_of

ROWS, OUTPUTS, INPUTS = 5, 40, 512
_FACTORS = {"q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
"""Places of a block's float16; 0 of other types."""


def random_rows(name: str) -> np.ndarray:
    """A matrix of any bits, but for its float16, which are no infinities."""
    rng = np.random.default_rng(5)
    size, byte_count = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
    rows = rng.integers(0, 256, (OUTPUTS, INPUTS // size, byte_count), dtype=np.uint8)
    for place in _FACTORS.get(name, (0,)):
        factors = rng.uniform(0.001, 0.1, rows.shape[:2]).astype(np.float16)
        rows[..., place : place + 2] = factors[..., np.newaxis].view(np.uint8)
    return rows.reshape(OUTPUTS, -1)


def tile_made(name: str) -> Callable[..., None]:
    made: Callable[..., None] = numba.cfunc(SIGNATURE, nopython=True)(tile_of(f"{name}_products", "a test's")).ctypes
    return made


@functools.cache
def own_tile(name: str) -> Callable[..., None]:
    """The tile that this processor computes with."""
    return tile_made(name)


def weights_of(tile: Callable[..., None], name: str, packed: Packed) -> np.ndarray:
    """All weights ``[outputs, inputs]``, as a tile without rows writes them."""
    kind, weights = BLOCK_TYPES[name], np.zeros((INPUTS, LANES), np.float32)
    columns = []
    for column in range(len(packed.data)):
        for group in range(packed.steps):
            place = packed.data.ctypes.data + column * packed.column_bytes + group * kind.group_bytes
            to = weights[group * kind.group_inputs :].ctypes.data
            tile(0, 0, 0, place, 0, 1, 0, 1, 0, to, 0)
        columns.append(weights.T.copy())
    return np.concatenate(columns)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_weights_are_those_that_gguf_dequantises(name: str) -> None:
    rows = random_rows(name)
    packed = packed_blocks(BLOCK_TYPES[name], rows)
    weights = weights_of(own_tile(name), name, packed)
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name.upper()])
    assert np.array_equal(weights[:OUTPUTS], expected)
    assert packed.outputs == 64
    assert not weights[OUTPUTS:].any()
    bytes_per_weight = rows.nbytes / (OUTPUTS * INPUTS)
    assert packed.data.nbytes <= 1.03 * bytes_per_weight * packed.outputs * INPUTS, "its own bits"


@pytest.mark.parametrize("other", ["BF16", "F16", "F32"])
def test_a_gate_of_another_type_than_what_goes_through_it_is_dequantised(other: str) -> None:
    kind = gguf.GGMLQuantizationType[other]
    expected = np.random.default_rng(7).integers(-9, 9, (OUTPUTS - 8, INPUTS)).astype(np.float32)
    stored = gguf.quants.quantize(expected, kind)
    gate = matrix_of(Tensor("gate", kind, expected.shape, stored.view(np.uint8)))
    up = Matrix("Q8_0", random_rows("q8_0")[: OUTPUTS - 8])
    for first, second in ((gate, up), (up, gate)):
        both = gated(first, second)
        assert both.type == "F32"
        assert np.array_equal(both.rows[16 * (first is up) :][:16], expected[:16])


@numba.njit  # type: ignore[untyped-decorator] # Numba is untyped
def _quantise(rows: int, inputs: int, size: int, raw: int) -> None:
    for row in range(rows):
        quantised.quantise(raw + row * size * 4, size, inputs + row * (size // 32) * quantised.INPUT_BYTES)


def test_inputs_are_whole_numbers_with_their_sums() -> None:
    raw = _raw()
    blocks = _quantised(raw)
    whole, scales = _expected_inputs(raw)
    assert np.array_equal(blocks[..., :BLOCK].view(np.int8), whole)
    said = np.ascontiguousarray(blocks[..., BLOCK:]).view(np.float32)
    sums = np.ascontiguousarray(blocks[..., BLOCK:]).view(np.int32)
    assert np.array_equal(said[..., 0], scales)
    assert np.array_equal(sums[..., 1], -128 * whole.sum(-1))
    assert np.array_equal(sums[..., 2], -128 * whole[..., LANES:].sum(-1))
    assert np.array_equal(said[..., 3], scales * whole.sum(-1).astype(np.float32))


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_products_are_what_they_say(name: str) -> None:
    rows, raw = random_rows(name), _raw()
    assert np.array_equal(_products(own_tile(name), name, rows, raw), _expected_sums(name, rows[:32], raw))


@pytest.mark.parametrize(
    ("name", "instruction"),
    [*((name, "HAS_WORD_DOTS") for name in ("q8_0", "q4_1", "q5_0", "q6_k")), ("q8_0", None)],
)
def test_other_instructions_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, name: str, instruction: str | None
) -> None:
    if instruction and not getattr(byte_dots, instruction):
        pytest.skip(f"this processor has none: {instruction}")
    own = own_tile(name)
    for each in ("HAS_BYTE_DOTS", "HAS_WORD_DOTS"):
        monkeypatch.setattr(byte_dots, each, each == instruction)
    rows, raw = random_rows(name), _raw()
    assert np.array_equal(_products(tile_made(name), name, rows, raw), _products(own, name, rows, raw))


def _products(tile: Callable[..., None], name: str, rows: np.ndarray, raw: np.ndarray) -> np.ndarray:
    packed, inputs, outputs = packed_blocks(BLOCK_TYPES[name], rows), _quantised(raw), np.zeros((ROWS, 32), np.float32)
    tile(
        ROWS,
        inputs.ctypes.data,
        packed.row_bytes,
        packed.data.ctypes.data,
        packed.column_bytes,
        packed.steps,
        0,
        1,
        0,
        outputs.ctypes.data,
        outputs.strides[0],
    )
    return outputs


def _expected_sums(name: str, rows: np.ndarray, raw: np.ndarray) -> np.ndarray:
    kind, blocks = BLOCK_TYPES[name], blocks_of(name, rows)
    whole, given = _expected_inputs(raw)
    quants = blocks.quants.astype(np.float64).reshape(len(rows), -1, kind.scales, BLOCK // kind.scales) - kind.offset
    dots = np.einsum("rbsi,obsi->robs", whole.reshape(ROWS, -1, *quants.shape[2:]), quants)
    scales, minima = _by_block(blocks.scales, blocks.block_scales), None
    if blocks.minima is not None:
        minima = _by_block(blocks.minima, blocks.block_minima)[..., 0]
    if kind.scales > 1:
        assert blocks.block_scales is not None
        dots = (dots * blocks.block_scales.reshape(len(rows), -1, kind.scales)).sum(-1, keepdims=True)
        scales = np.repeat(blocks.scales.astype(np.float32), kind.blocks, axis=1)[..., np.newaxis]
    scaled_sums = given * whole.sum(-1).astype(np.float32)
    sums = np.zeros((ROWS, len(rows)))
    for block in range(dots.shape[2]):  # a fused multiply-add rounds once
        factors = scales[:, block, 0] * given[:, block, np.newaxis]
        sums = _rounded(sums + dots[..., block, 0] * factors.astype(np.float64))
        if minima is not None:
            sums = _rounded(sums + minima[:, block].astype(np.float64) * scaled_sums[:, block, np.newaxis])
    return sums


def _by_block(of_groups: np.ndarray, of_blocks: np.ndarray | None) -> np.ndarray:
    """Factors of blocks ``[outputs, blocks, scales]``."""
    groups = of_groups.astype(np.float32)
    if of_blocks is None:
        return groups[..., np.newaxis]
    by_group: np.ndarray = groups[:, :, np.newaxis] * of_blocks.reshape(*groups.shape, -1).astype(np.float32)
    return by_group.reshape(len(groups), groups.shape[1] * 8, -1)


def _rounded(sums: np.ndarray) -> np.ndarray:
    return sums.astype(np.float32).astype(np.float64)


def _raw() -> np.ndarray:
    raw = np.random.default_rng(6).normal(size=(ROWS, INPUTS)).astype(np.float32)
    raw[1, 32:64], raw[2, :32] = 0, 1e-40
    return raw


def _quantised(raw: np.ndarray) -> np.ndarray:
    """Rows as blocks of bytes."""
    inputs = np.zeros((ROWS, INPUTS // BLOCK, quantised.INPUT_BYTES), dtype=np.uint8)
    _quantise(ROWS, inputs.ctypes.data, INPUTS, raw.ctypes.data)
    return inputs


def _expected_inputs(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    by_block = raw.reshape(ROWS, -1, BLOCK)
    largest = np.abs(by_block).max(axis=-1)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 1e-30)
    return np.rint(by_block * inverse[..., np.newaxis]), largest / np.float32(127)
