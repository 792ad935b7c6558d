"""Products by the matrix unit: their bits are what the instruction is said to do, and depend on their own row and output alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch

from slipstream.engine.compiled import tiles
from slipstream.engine.compiled.decoder import in_lanes
from slipstream.engine.compiled.matrices import MATRIX_ROWS, MOST_ROWS, close_matrices, open_matrices
from slipstream.engine.compiled.processor import HAS_MATRICES
from slipstream.engine.compiled.products import TILE_COLUMNS
from slipstream.engine.compiled.tiles import call_tile

pytestmark = pytest.mark.skipif(not HAS_MATRICES, reason="this processor has no matrix unit, or the system keeps it")

INPUTS = 32 * 5
Multiply = Callable[[torch.Tensor, torch.Tensor], np.ndarray]


@pytest.fixture(scope="module")
def multiply() -> Multiply:
    """Rows ``[rows, inputs]`` by a tile's matrix ``[32, inputs]``, in bfloat16: float32 ``[rows, 32]``."""
    place = tiles.place_of("matrix_products")

    @numba.njit
    def run(rows: Any, inputs: Any, row_bytes: Any, weights: Any, steps: Any, table: Any, outputs: Any) -> None:
        open_matrices()
        call_tile(place, rows, inputs, row_bytes, weights, 64 * steps, steps, table, 1, 0, outputs, 4 * TILE_COLUMNS)
        close_matrices()

    def product(rows: torch.Tensor, matrix: torch.Tensor) -> np.ndarray:
        count, inputs = rows.shape
        # Beyond the last row the unit reads what happens to be there.
        given = torch.full((count + MOST_ROWS, inputs), torch.nan, dtype=torch.bfloat16)
        given[:count] = rows
        packed, outputs = in_lanes(matrix), torch.zeros(count + MOST_ROWS, TILE_COLUMNS)
        table = np.zeros(1, dtype=np.int64)
        places = packed.data_ptr(), inputs // 2, table.ctypes.data, outputs.data_ptr()
        run(count, given.data_ptr(), 2 * inputs, *places)
        return outputs[:count].numpy().copy()

    return product


def drawn(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, INPUTS, generator=generator).bfloat16(),
        torch.randn(TILE_COLUMNS, INPUTS, generator=generator).bfloat16(),
    )


def test_the_bits_are_two_chains_of_sixteen_at_a_time(multiply: Multiply) -> None:
    rows, matrix = drawn(MOST_ROWS)
    given, weights = rows.double().numpy(), matrix.double().numpy()
    total = np.zeros((MOST_ROWS, TILE_COLUMNS), dtype=np.float32)
    for start in range(0, INPUTS, 32):
        chains = np.zeros((2, MOST_ROWS, TILE_COLUMNS), dtype=np.float32)
        for place in range(start, start + 32):
            chain = chains[place % 2]
            chain[:] = (chain + np.multiply.outer(given[:, place], weights[:, place])).astype(np.float32)
        total += chains[0] + chains[1]
    assert np.array_equal(multiply(rows, matrix).view(np.uint32), total.view(np.uint32))


@pytest.mark.parametrize("count", [1, 2, MATRIX_ROWS - 1, MATRIX_ROWS, MATRIX_ROWS + 1, MOST_ROWS - 1])
def test_other_rows_change_no_bit(multiply: Multiply, count: int) -> None:
    rows, matrix = drawn(MOST_ROWS, seed=count)
    together = multiply(rows, matrix)
    for first in range(0, MOST_ROWS - count + 1, 5):
        some = multiply(rows[first : first + count], matrix)
        assert np.array_equal(some.view(np.uint32), together[first : first + count].view(np.uint32))


def test_what_is_no_number_stays_in_its_row(multiply: Multiply) -> None:
    rows, matrix = drawn(4)
    rows[1, 3], rows[2, 5] = torch.inf, torch.nan
    told = multiply(rows, matrix)
    assert np.isfinite(told[[0, 3]]).all()
    assert np.isinf(told[1]).all()
    assert np.isnan(told[2]).all()
