"""Tiles have the same bits however many of their sums a processor's registers hold."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
import pytest

from slipstream.engine.compiled import tiles
from slipstream.engine.compiled.block_types import BLOCK_TYPES
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.products import TILE_ROWS, WIDENED
from slipstream.engine.compiled.quantised import INPUT_BYTES
from slipstream.engine.compiled.tiles import SIGNATURE, parts_of, tile_of

STEPS, BLOCKS = 20, 3
TABLE = [2, 0, 1]
KINDS = ["bf16_products", "wide_bf16_products", "half_products", "float_products", "float_scores"]
INPUTS = {"wide_bf16_products": "float_products", "half_products": "float_products"}
"""Kinds whose inputs are numbers of another."""
KINDS_OF_ATTENTION = ["bf16_products", "float_products", "float_scores"]
VARIANTS = ((6, True), (8, True), (8, False), (32, False), (32, True))
"""Registers that a processor has, and whether it asks ahead. Two of them are enough for kinds whose
instructions are written like those of others."""
DTYPES = {"float_products": np.float32, "half_products": np.float16}
QUANTISED = ["q8_0_products", "q4_1_products", "q6_k_products"]


@pytest.fixture(scope="module", params=[*KINDS, *QUANTISED])
def made(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[numba.core.ccallback.CFunc]]]:
    """A kind of tile, for processors with few registers and with many, and asking ahead or not."""
    with pytest.MonkeyPatch.context() as patch:
        each = []
        few = request.param not in ("q8_0_products", *KINDS_OF_ATTENTION)
        for registers, ahead in ((6, True), (32, False)) if few else VARIANTS:
            patch.setattr(tiles, "REGISTERS", registers)
            patch.setattr(tiles, "ASKS_AHEAD", ahead)
            each.append(numba.cfunc(SIGNATURE, nopython=True)(tile_of(request.param, f"{registers} {ahead}")))
        yield request.param, each


@pytest.mark.parametrize("rows", range(1, TILE_ROWS + 1))
def test_few_registers_change_no_bit(made: tuple[str, list[numba.core.ccallback.CFunc]], rows: int) -> None:
    kind, compiled = made
    rng = np.random.default_rng(rows)
    is_quantised = kind in QUANTISED
    step_bytes, input_bytes = 4 * LANES, 8 if kind in ("wide_bf16_products", "half_products") else 4
    if is_quantised:
        block_type = BLOCK_TYPES[kind.removesuffix("_products")]
        step_bytes, input_bytes = block_type.group_bytes, block_type.blocks * INPUT_BYTES
    table = np.array([0] if is_quantised else TABLE)
    weights = _numbers(rng, (2, BLOCKS, STEPS * step_bytes), kind)
    inputs = _numbers(rng, (rows, len(table) * STEPS * input_bytes), INPUTS.get(kind, kind))
    if kind == "bf16_products" and WIDENED:
        inputs = _widened(inputs)
    columns = 1 if kind.endswith("scores") else 2
    told = [_sums(tile, inputs, weights, table, columns).view(np.uint32) for tile in compiled]
    assert len(np.unique(told[0])) > rows * columns * LANES // 2
    assert all(np.array_equal(each, told[0]) for each in told)


def _sums(
    tile: numba.core.ccallback.CFunc, inputs: np.ndarray, weights: np.ndarray, table: np.ndarray, columns: int
) -> np.ndarray:
    """Return a tile's sums, float32 ``[rows, columns * 16]``, of ``inputs [rows, bytes]`` and
    ``weights [2, blocks, bytes]``."""
    outputs = np.full((len(inputs), columns * LANES), 7, dtype=np.float32)
    tile.ctypes(
        len(inputs),
        inputs.ctypes.data,
        inputs.strides[0],
        weights.ctypes.data,
        weights.strides[0],
        STEPS,
        table.ctypes.data,
        len(table),
        weights.strides[1],
        outputs.ctypes.data,
        outputs.strides[0],
    )
    return outputs


def _widened(halves: np.ndarray) -> np.ndarray:
    """Bytes of bfloat16 as bytes of float32."""
    wide: np.ndarray = halves.view(np.uint16).astype(np.uint32) << 16
    return wide.view(np.uint8)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_a_sum_is_one_chain_of_fused_multiply_adds(kind: str) -> None:
    """In the order of the inputs, from 0 on. The processor's own bfloat16 instruction rounds
    otherwise."""
    if kind == "bf16_products" and not WIDENED:
        pytest.skip("bfloat16 has an instruction of its own here")
    rng = np.random.default_rng(0)
    at_once = 1 if kind == "float_products" else 2
    weights = _numbers(rng, (2, BLOCKS, STEPS * 4 * LANES), kind)
    inputs = _numbers(rng, (5, BLOCKS * STEPS * 4 * at_once), "float_products")
    tile = numba.cfunc(SIGNATURE, nopython=True)(tile_of(kind, "chains"))
    told = _sums(tile, inputs, weights, np.array(TABLE), 2)

    numbers = inputs.view(np.float32).astype(np.float64)  # [rows, inputs]
    factors = _widened(weights).view(np.float32) if "bf16" in kind else weights.view(DTYPES[kind]).astype(np.float32)
    if kind == "half_products":  # sixteen outputs of an input, and then of the next
        factors = factors.reshape(2, BLOCKS, STEPS, at_once, LANES).swapaxes(3, 4)
    factors = factors.reshape(2, BLOCKS, STEPS, LANES, at_once)[:, TABLE].transpose(1, 2, 4, 0, 3)
    expected = np.zeros((5, 2 * LANES), dtype=np.float32)
    for place, row in enumerate(factors.reshape(-1, 2 * LANES)):
        expected = _rounded_once(np.multiply.outer(numbers[:, place], row.astype(np.float64)), expected)
    assert np.array_equal(told.view(np.uint32), expected.view(np.uint32))


def _rounded_once(products: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Exact products and float32 totals, their sum as float32. In float64 what is lost is added as
    a last bit, so that to round again makes no difference (Boldo and Melquiond 2008)."""
    terms = totals.astype(np.float64)
    sums = products + terms
    back = sums - products
    lost = (products - (sums - back)) + (terms - back)
    is_even = sums.view(np.uint64) % 2 == 0
    nudged = np.nextafter(sums, np.where(lost > 0, np.inf, -np.inf))
    rounded: np.ndarray = np.where((lost != 0) & is_even, nudged, sums).astype(np.float32)
    return rounded


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Bytes that are numbers of a tile's kind, aligned as weights are."""
    size = int(np.prod(shape))
    room = np.zeros(size + 64, dtype=np.uint8)
    place = -room.ctypes.data % 64
    numbers = room[place : place + size]
    if kind in QUANTISED:
        numbers[:] = rng.integers(0, 60, size)  # as float16 and float32 too, they are small and no infinities
    elif kind == "half_products":
        numbers.view(np.float16)[:] = rng.normal(size=size // 2)
    elif kind.endswith("bf16_products"):
        numbers.view(np.uint16)[:] = rng.normal(size=size // 2).astype(np.float32).view(np.uint32) >> 16
    else:
        numbers.view(np.float32)[:] = rng.normal(size=size // 4)
    return numbers.reshape(shape)


@pytest.mark.parametrize("columns", [1, 2])
def test_parts_are_the_whole_tile_once_and_fit(columns: int) -> None:
    for rows in range(1, TILE_ROWS + 1):
        for most in range(1, 17):
            parts = parts_of(rows, columns, most)
            places = [(row, column) for part in parts for row in part.rows for column in part.columns]
            assert sorted(places) == [(row, column) for row in range(rows) for column in range(columns)]
            assert all(len(part.rows) * len(part.columns) <= most for part in parts)
            sizes = {len(part.rows) for part in parts}
            assert max(sizes) - min(sizes) <= 1, "a row alone would wait for its own sums"


def test_the_parts_of_some_columns_ask_for_the_next_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "ASKS_AHEAD", True)
    parts = parts_of(8, 2, 4)
    assert [(part.rows.stop, part.columns.start, part.asking) for part in parts] == [
        (4, 0, (0, 2)),
        (8, 0, (1, 2)),
        (4, 1, (0, 2)),
        (8, 1, (1, 2)),
    ]
    assert not any(part.asking for part in parts_of(8, 1, 4)), "keys' columns are no neighbours"
    assert parts_of(1, 2, 4)[0].asking == (0, 1)
    assert not parts_of(1, 2, 4, asks_from=2)[0].asking
    monkeypatch.setattr(tiles, "ASKS_AHEAD", False)
    assert not any(part.asking for part in parts_of(8, 2, 4))
