"""Tiles of products as functions of their own, which a walk calls by their addresses.

As parts of the walk they would be compiled a dozen times. Where a processor has no single
instruction for their steps, that takes minutes.

All tiles have the same arguments:

- how many rows, at most `TILE_ROWS` (or as `matrices` has it);
- the inputs' place, and bytes from a row to the next;
- the weights' place, and bytes from sixteen columns to the next;
- steps of each block;
- the place of a table of blocks, how many, and the bytes of one;
- the outputs' place, and bytes from a row to the next.

Without rows, a tile of a quantised matrix writes the weights of a step for sixteen outputs.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from slipstream.engine.compiled import products, quantised
from slipstream.engine.compiled.block_types import BLOCK_TYPES, BlockType
from slipstream.engine.compiled.keeping import keep, made_of
from slipstream.engine.compiled.lanes import INT64, Code
from slipstream.engine.compiled.matrices import write_matrix_products, write_matrix_scores, write_matrix_values
from slipstream.engine.compiled.processor import ASKS_AHEAD, REGISTERS
from slipstream.engine.compiled.products import TILE_ROWS, Part, constant


class _InParts(NamedTuple):
    """``columns`` of sixteen outputs; ``write`` gives the instructions of a `Part`. Beside sums a
    step has ``beside`` registers full. From so many rows on it ``asks_from`` memory for the next
    columns, where it has several. ``write_weights`` is for no rows."""

    columns: int
    write: Code
    beside: int
    asks_from: int = 1
    write_weights: Code | None = None

    def write_tile(self, builder: Any, count: Any, *values: Any) -> None:
        """The instructions for each number of rows that there may be."""
        done = builder.function.append_basic_block("written")
        choice = builder.switch(count, done)
        if self.write_weights is not None:
            weights = builder.function.append_basic_block("weights")
            choice.add_case(constant(0), weights)
            builder.position_at_end(weights)
            self.write_weights(builder, *values)
            builder.branch(done)
        for rows in range(1, TILE_ROWS + 1):
            tile = builder.function.append_basic_block(f"rows_{rows}")
            choice.add_case(constant(rows), tile)
            builder.position_at_end(tile)
            for part in parts_of(rows, self.columns, REGISTERS - self.beside, self.asks_from):
                self.write(builder, part, *values)
            builder.branch(done)
        builder.position_at_end(done)


def _of_blocks(kind: BlockType) -> Code:
    write, write_weights = (
        functools.partial(each, kind) for each in (quantised.write_products, quantised.write_weights)
    )
    return _InParts(2, write, quantised.BESIDE, write_weights=write_weights).write_tile


_KINDS: dict[str, Code] = {
    "matrix_products": write_matrix_products,
    "matrix_scores": write_matrix_scores,
    "matrix_values": write_matrix_values,
    "bf16_products": _InParts(2, products.write_bf16, products.BF16_BESIDE).write_tile,
    # A lone row does nothing but wait for memory: to be asked as well then costs it a fifth.
    "float_products": _InParts(2, products.write_float, products.FLOAT_BESIDE, asks_from=2).write_tile,
    "wide_bf16_products": _InParts(2, products.write_wide_bf16, products.BF16_BESIDE).write_tile,
    "half_products": _InParts(2, products.write_halves, products.BF16_BESIDE).write_tile,
    "bf16_scores": _InParts(1, products.write_bf16, products.BF16_BESIDE).write_tile,
    "float_scores": _InParts(1, products.write_float, products.FLOAT_BESIDE).write_tile,
    **{f"{name}_products": _of_blocks(kind) for name, kind in BLOCK_TYPES.items()},
}
"""Functions that write a tile's instructions, given how many rows it has and all else that it is
told."""

SIGNATURE = types.void(*[types.int64] * 11)


def parts_of(rows: int, columns: int, most: int, asks_from: int = 1) -> list[Part]:
    """The parts of a tile, one after the other: as much each as there is room for sums, ``most``.
    Those of the same columns follow one another, since what they read is in the nearest cache then;
    all of these ask for the next columns, so that memory has something to do as long as they
    compute."""
    at_once = columns if rows * columns <= most else 1
    passes = -(-rows * at_once // most)
    asks = ASKS_AHEAD and columns > 1 and rows >= asks_from
    edges = [rows * number // passes for number in range(passes + 1)]
    return [
        Part(range(first, end), range(column, column + at_once), (number, passes) if asks else None)
        for column in range(0, columns, at_once)
        for number, (first, end) in enumerate(pairwise(edges))
    ]


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator] # Numba is untyped
def _written(
    context: Any,
    kind: Any,
    rows: Any,
    inputs: Any,
    input_bytes: Any,
    weights: Any,
    column_bytes: Any,
    steps: Any,
    table: Any,
    blocks: Any,
    block_bytes: Any,
    outputs: Any,
    output_bytes: Any,
) -> tuple[Any, Code]:
    """The instructions of a kind of tile."""
    write = _KINDS[kind.literal_value]

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        write(builder, *values[1:])
        return context.get_dummy_value()

    return types.void(kind, *SIGNATURE.args), code


def tile_of(kind: str, made_of: str) -> Code:
    """A tile for Numba to compile."""

    def tile(
        rows: Any,
        inputs: Any,
        input_bytes: Any,
        weights: Any,
        column_bytes: Any,
        steps: Any,
        table: Any,
        blocks: Any,
        block_bytes: Any,
        outputs: Any,
        output_bytes: Any,
    ) -> None:
        made_of  # noqa: B018 # in the closure, so that Numba tells one from another
        _written(
            kind,
            rows,
            inputs,
            input_bytes,
            weights,
            column_bytes,
            steps,
            table,
            blocks,
            block_bytes,
            outputs,
            output_bytes,
        )

    # Numba names its files by it. Each kind has its own, for processes compile two kinds at once.
    tile.__qualname__ = f"{tile_of.__name__}.{kind}"
    return tile


@functools.cache
def _compiled(kind: str) -> Any:
    return keep(SIGNATURE, tile_of(kind, made_of()))


def place_of(kind: str) -> int:
    """A tile's place, for `call_tile`."""
    return int(_compiled(kind).address)


@intrinsic  # type: ignore[untyped-decorator] # Numba is untyped
def call_tile(
    context: Any,
    place: Any,
    rows: Any,
    inputs: Any,
    input_bytes: Any,
    weights: Any,
    column_bytes: Any,
    steps: Any,
    table: Any,
    blocks: Any,
    block_bytes: Any,
    outputs: Any,
    output_bytes: Any,
) -> tuple[Any, Code]:
    """Call the tile that is at a ``place``."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, *rest = values
        function = ir.FunctionType(ir.VoidType(), [INT64] * len(rest))
        builder.call(builder.inttoptr(place, function.as_pointer()), rest)
        return context.get_dummy_value()

    return types.void(types.int64, *SIGNATURE.args), code
