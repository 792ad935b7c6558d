"""Products of rows and matrices in eight bits: as GGUF's Q8_0, blocks of 32 whole numbers with a scale, inputs too.

A matrix ``[outputs, inputs]`` lies as ``[outputs / 16][inputs / 32]`` blocks::

    [8 steps][16 outputs][4 inputs] of one byte each, 128 above what they mean     512 bytes
    [16 outputs] scales in float16                                                  32 bytes

and a row of inputs as one block after another: 32 numbers of one byte, their scale in float32, and -128 times their sum, which
takes off what the weights' bytes are above what they mean. The products of a block are whole numbers, so they have the same
bits however a processor adds them; the sums of blocks are one chain of fused multiply-adds in their order.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import types
from numba.extending import intrinsic

from slipstream.engine.compiled.lanes import (
    FLOAT,
    FLOATS,
    HALVES,
    INT32,
    INTS,
    LANES,
    Code,
    absolute,
    add,
    at,
    compiled,
    fuse,
    integers,
    larger,
    largest_of,
    llvm_function,
    load,
    multiply,
    numbers,
    rounded,
    splat,
    spread,
    store_bytes,
    sum_of,
    write_integer,
    write_number,
)
from slipstream.engine.compiled.products import by_row_count, carried, constant, offset

BLOCK = 32
"""Inputs that share a scale."""

_STEP_INPUTS = 4
_STEPS = BLOCK // _STEP_INPUTS
_STEP_BYTES = LANES * _STEP_INPUTS
_WEIGHT_BYTES = _STEPS * _STEP_BYTES

BLOCK_BYTES = _WEIGHT_BYTES + 2 * LANES
"""Of weights, for sixteen outputs."""

INPUT_BYTES = BLOCK + 8
"""Of a block of a row of inputs."""

OFFSET = 128
"""Of a weight's byte."""

_LARGEST = np.float32(127.0)
_ZERO = np.float32(0.0)
_LEAST = np.float32(1e-30)
"""Of a block's largest number: what is smaller is nothing, for its inverse might be infinite."""
_COLUMNS = 2
_HAS_DOTS = bool(llvm.get_host_cpu_features().get("avx512vnni"))


def _dot(builder: Any, sums: Any, weights: Any, inputs: Any) -> Any:
    """Add the four products in each lane's 32 bits, of a byte without a sign and one with it: whole numbers, so by one
    instruction or four the same."""
    if _HAS_DOTS:
        dots = llvm_function(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, [INTS] * 3)
        return builder.call(dots, [sums, weights, inputs])
    for place in range(_STEP_INPUTS):
        weight = builder.and_(builder.lshr(weights, integers(8 * place)), integers(0xFF))
        value = builder.ashr(builder.shl(inputs, integers(24 - 8 * place)), integers(24))
        sums = builder.add(sums, builder.mul(weight, value))
    return sums


@intrinsic  # type: ignore[untyped-decorator] # Numba is untyped
def quantised_products(
    context: Any,
    rows: Any,
    inputs: Any,
    input_bytes: Any,
    weights: Any,
    column_bytes: Any,
    blocks: Any,
    outputs: Any,
    output_bytes: Any,
) -> tuple[Any, Code]:
    """Sums of 32 outputs of ``rows`` rows, `products.TILE_ROWS` at most, over so many blocks. Sizes are in bytes, from a row or
    sixteen columns to the next."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        count, *rest = values
        by_row_count(builder, count, lambda rows: _write_tile(builder, rows, *rest))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), code


def _write_tile(
    builder: Any,
    row_count: int,
    inputs: Any,
    input_bytes: Any,
    weights: Any,
    column_bytes: Any,
    blocks: Any,
    outputs: Any,
    output_bytes: Any,
) -> None:
    """A loop over blocks, and then the sums."""
    entry, places = builder.block, [(row, column) for row in range(row_count) for column in range(_COLUMNS)]
    loop, done = map(builder.function.append_basic_block, ("block", "sums"))
    builder.branch(loop)

    builder.position_at_end(loop)
    block = carried(builder, constant(0), entry)
    sums = {place: carried(builder, numbers(0.0), entry) for place in places}
    of_rows = [
        offset(builder, offset(builder, inputs, block, constant(INPUT_BYTES)), constant(row), input_bytes)
        for row in range(row_count)
    ]
    of_columns = [
        offset(builder, offset(builder, weights, block, constant(BLOCK_BYTES)), constant(column), column_bytes)
        for column in range(_COLUMNS)
    ]
    totals = _block_sums(builder, of_rows, of_columns, sums)
    following = builder.add(block, constant(1))
    block.add_incoming(following, loop)
    for place in places:
        sums[place].add_incoming(totals[place], loop)
    builder.cbranch(builder.icmp_signed("<", following, blocks), loop, done)

    builder.position_at_end(done)
    for row, column in places:
        to = offset(
            builder, offset(builder, outputs, constant(row), output_bytes), constant(column), constant(4 * LANES)
        )
        builder.store(totals[row, column], at(builder, to, FLOATS), align=4)


def _block_sums(builder: Any, of_rows: list[Any], of_columns: list[Any], sums: dict[Any, Any]) -> dict[Any, Any]:
    """The sums with a block's products, of rows and columns that have it at these addresses."""
    dots: dict[Any, Any] = {}
    for row, address in enumerate(of_rows):
        start = spread(builder, _read(builder, address, BLOCK + 4, INT32, 4))
        for column in range(_COLUMNS):
            dots[row, column] = start
    for step in range(_STEPS):
        lanes = [_read(builder, address, step * _STEP_BYTES, INTS, 32) for address in of_columns]
        for row, address in enumerate(of_rows):
            given = spread(builder, _read(builder, address, step * _STEP_INPUTS, INT32, 4))
            for column in range(_COLUMNS):
                dots[row, column] = _dot(builder, dots[row, column], lanes[column], given)
    scales = [builder.fpext(_read(builder, address, _WEIGHT_BYTES, HALVES, 32), FLOATS) for address in of_columns]
    for row, address in enumerate(of_rows):
        scale = spread(builder, _read(builder, address, BLOCK, FLOAT, 4))
        for column in range(_COLUMNS):
            factor = builder.fmul(scales[column], scale)
            dots[row, column] = fuse(builder, builder.sitofp(dots[row, column], FLOATS), factor, sums[row, column])
    return dots


def _read(builder: Any, address: Any, place: int, kind: Any, alignment: int) -> Any:
    return builder.load(at(builder, builder.add(address, constant(place)), kind), align=alignment)


@compiled
def quantise(source: int, size: int, to: int) -> None:
    """A row of float32 inputs as blocks: the largest of a block becomes 127 or -127. One that is no number makes its block's
    scale none, so that it is not lost."""
    for place in range(0, size, BLOCK):
        first, second = load(source + 4 * place), load(source + 4 * (place + LANES))
        largest = largest_of(larger(absolute(first), absolute(second)))
        total = sum_of(add(first, second))
        inverse = splat(_LARGEST / largest if largest > _LEAST else _ZERO)
        first, second = rounded(multiply(first, inverse)), rounded(multiply(second, inverse))
        block = to + place // BLOCK * INPUT_BYTES
        store_bytes(block, first)
        store_bytes(block + LANES, second)
        write_number(block + BLOCK, np.float32(largest / _LARGEST) + (total - total))
        write_integer(block + BLOCK + 4, -OFFSET * int(sum_of(add(first, second))))


def in_blocks(numbers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """A matrix as products read it, of its ``numbers`` ``[outputs, inputs]`` in int8 and ``scales`` ``[outputs, inputs / 32]``
    in float16; outputs are a multiple of 16. Bytes ``[outputs / 16, inputs / 32, BLOCK_BYTES]``."""
    outputs, inputs = numbers.shape
    packed = np.empty((outputs // LANES, inputs // BLOCK, BLOCK_BYTES), dtype=np.uint8)
    above = numbers.view(np.uint8) ^ np.uint8(OFFSET)
    steps = above.reshape(-1, LANES, inputs // BLOCK, _STEPS, _STEP_INPUTS).transpose(0, 2, 3, 1, 4)
    packed[..., :_WEIGHT_BYTES] = steps.reshape(*packed.shape[:2], _WEIGHT_BYTES)
    by_block = np.ascontiguousarray(scales.reshape(-1, LANES, inputs // BLOCK).transpose(0, 2, 1))
    packed[..., _WEIGHT_BYTES:] = by_block.view(np.uint8)
    return packed
