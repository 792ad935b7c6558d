"""Products by the matrix unit: bits as its instruction is said to make them, that depend on their
own row and output alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch

from slipstream.engine.compiled import tiles
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.matrices import (
    MATRIX_ROWS,
    MOST_ROWS,
    close_matrices,
    open_for_attention,
    open_for_products,
)
from slipstream.engine.compiled.packing import in_lanes
from slipstream.engine.compiled.processor import HAS_MATRICES
from slipstream.engine.compiled.products import STEP_BYTES
from slipstream.engine.compiled.tiles import call_tile

pytestmark = pytest.mark.skipif(not HAS_MATRICES, reason="this processor has no matrix unit, or the system keeps it")

KINDS = {
    "matrix_products": (MOST_ROWS, 32, 160),
    "matrix_scores": (MATRIX_ROWS, 16, 96),
    "matrix_values": (MATRIX_ROWS, 32, 16),
}
"""Rows at most, outputs, and inputs of a block."""
BLOCKS = (2, 0, 3)
"""Where they lie; the matrix has one more, which no call asks for."""

Multiply = Callable[[torch.Tensor, torch.Tensor], np.ndarray]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def multiply(kind: str) -> Multiply:
    """Rows ``[rows, blocks, inputs]`` by ``[blocks, outputs, inputs]``, in bfloat16, over `BLOCKS`:
    ``[rows, outputs]``."""
    place, is_product = tiles.place_of(kind), kind == "matrix_products"

    @numba.njit  # type: ignore[untyped-decorator] # Numba is untyped
    def run(
        rows: Any, inputs: Any, row_bytes: Any, weights: Any, steps: Any, table: Any, size: Any, outputs: Any
    ) -> None:
        if is_product:
            open_for_products()
        else:
            open_for_attention()
        output_bytes = 4 * size
        column_bytes = STEP_BYTES * steps
        block_bytes = column_bytes * (size // LANES)
        call_tile(
            place, rows, inputs, row_bytes, weights, column_bytes, steps, table, 3, block_bytes, outputs, output_bytes
        )
        close_matrices()

    def product(rows: torch.Tensor, matrix: torch.Tensor) -> np.ndarray:
        count, (_, size, inputs) = len(rows), matrix.shape
        # Beyond the last row the unit reads what happens to be there.
        given = torch.full((count + MOST_ROWS, len(BLOCKS), inputs), torch.nan, dtype=torch.bfloat16)
        given[:count] = rows
        packed = torch.stack([_packed(block) for block in matrix])
        outputs, table = torch.zeros(count + MOST_ROWS, size), np.array(BLOCKS)
        places = packed.data_ptr(), inputs // 2, table.ctypes.data, size, outputs.data_ptr()
        run(count, given.data_ptr(), 2 * inputs * len(BLOCKS), *places)
        return outputs[:count].numpy().copy()

    return product


def _packed(block: torch.Tensor) -> torch.Tensor:
    """As `in_lanes`, without filling a lone sixteen up."""
    packed = in_lanes(block.view(torch.uint16).numpy())[: len(block) // LANES]
    return torch.from_numpy(packed).view(torch.bfloat16)


def drawn(kind: str, rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    _, outputs, inputs = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, len(BLOCKS), inputs, generator=generator).bfloat16(),
        torch.randn(len(BLOCKS) + 1, outputs, inputs, generator=generator).bfloat16(),
    )


def same(first: np.ndarray, second: np.ndarray) -> bool:
    return np.array_equal(first.view(np.uint32), second.view(np.uint32))


def test_the_bits_are_two_chains_an_instruction(kind: str, multiply: Multiply) -> None:
    most, outputs, inputs = KINDS[kind]
    rows, matrix = drawn(kind, most)
    given, weights = rows.double().numpy(), matrix.double().numpy()
    at_once = 16 if kind == "matrix_values" else 32
    total = np.zeros((most, outputs), dtype=np.float32)
    for number, block in enumerate(BLOCKS):
        for start in range(0, inputs, at_once):
            chains = np.zeros((2, most, outputs), dtype=np.float32)
            for place in range(start, start + at_once):
                products = np.multiply.outer(given[:, number, place], weights[block, :, place])
                chains[place % 2] = (chains[place % 2] + products).astype(np.float32)
            total += chains[0] + chains[1]
    assert same(multiply(rows, matrix), total)


def test_other_rows_change_no_bit(kind: str, multiply: Multiply) -> None:
    most = KINDS[kind][0]
    for count in range(1, most):
        rows, matrix = drawn(kind, most, seed=count)
        together = multiply(rows, matrix)
        for first in range(0, most - count + 1, 5):
            assert same(multiply(rows[first : first + count], matrix), together[first : first + count])


def test_what_is_no_number_stays_in_its_row(kind: str, multiply: Multiply) -> None:
    rows, matrix = drawn(kind, 4)
    rows[1, 1, 3], rows[2, 0, 5] = torch.inf, torch.nan
    told = multiply(rows, matrix)
    assert np.isfinite(told[[0, 3]]).all()
    assert np.isinf(told[1]).all()
    assert np.isnan(told[2]).all()


def test_a_key_of_weight_0_changes_no_bit(kind: str, multiply: Multiply) -> None:
    """Attention counts on it: what a query does not see has the weight 0, and keys of any size."""
    rows, matrix = drawn(kind, 3)
    rows[:, 1] = 0
    other = matrix.clone()
    other[BLOCKS[1]] *= 1e30
    assert same(multiply(rows, matrix), multiply(rows, other))
