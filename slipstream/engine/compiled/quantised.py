"""Products of rows and matrices in eight bits: as GGUF's Q8_0, blocks of 32 whole numbers with a
scale, inputs too.

A matrix ``[outputs, inputs]`` lies as ``[outputs / 16][inputs / 32]`` blocks::

    [8 steps][16 outputs][4 inputs] of one byte each, 128 above what they mean     512 bytes
    [16 outputs] scales in float16                                                  32 bytes

and a row of inputs as one block after another: 32 numbers of one byte, their scale in float32, and
-128 times their sum, which takes off what the weights' bytes are above what they mean. The products
of a block are whole numbers, so they have the same bits however a processor adds them; the sums of
blocks are one chain of fused multiply-adds in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from slipstream.engine.compiled.lanes import (
    FLOAT,
    FLOATS,
    HALVES,
    INT32,
    INTS,
    LANES,
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
from slipstream.engine.compiled.processor import HAS_BYTE_DOTS, HAS_WORD_DOTS
from slipstream.engine.compiled.products import Part, ask_for_next, carried, constant, offset, repeat

BLOCK = 32
"""Inputs that share a scale."""

_STEP_INPUTS = 4
_STEPS = BLOCK // _STEP_INPUTS
_STEP_BYTES = LANES * _STEP_INPUTS
_WEIGHT_BYTES = _STEPS * _STEP_BYTES

BLOCK_BYTES = _WEIGHT_BYTES + 2 * LANES
"""Bytes of a block of weights, for sixteen outputs."""

INPUT_BYTES = BLOCK + 8
"""Bytes of a block of a row of inputs."""

OFFSET = 128
"""Offset of a weight's byte."""

BESIDE = 4
"""Registers that a step has full beside its sums."""

_LARGEST = np.float32(127.0)
_ZERO = np.float32(0.0)
_LEAST = np.float32(1e-30)
"""Least of a block's largest number. A block below it counts as zeros, for its inverse might be
infinite."""
_WORDS = ir.VectorType(ir.IntType(16), 2 * LANES)
_HALF_INTS, _HALF_WORDS = ir.VectorType(INT32, LANES // 2), ir.VectorType(ir.IntType(16), LANES)


def _dot(builder: Any, sums: Any, weights: Any, inputs: Any) -> Any:
    """Add the four products in each lane's 32 bits, of a byte without a sign and one with it. They
    are whole numbers, so all instructions give the same."""
    if HAS_BYTE_DOTS:
        dots = llvm_function(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, [INTS] * 3)
        return builder.call(dots, [sums, weights, inputs])
    if HAS_WORD_DOTS:
        return _dot_of_words(builder, sums, weights, inputs)
    for place in range(_STEP_INPUTS):
        weight = builder.and_(builder.lshr(weights, integers(8 * place)), integers(0xFF))
        value = builder.ashr(builder.shl(inputs, integers(24 - 8 * place)), integers(24))
        sums = builder.add(sums, builder.mul(weight, value))
    return sums


def _dot_of_words(builder: Any, sums: Any, weights: Any, inputs: Any) -> Any:
    """The same by products of 16-bit numbers: of a lane's first and third byte, and of its second
    and fourth."""

    def every(number: int) -> Any:
        return ir.Constant(_WORDS, [number] * (2 * LANES))

    weights, inputs = builder.bitcast(weights, _WORDS), builder.bitcast(inputs, _WORDS)
    first = builder.and_(weights, every(0xFF)), builder.ashr(builder.shl(inputs, every(8)), every(8))
    second = builder.lshr(weights, every(8)), builder.ashr(inputs, every(8))
    for pair in (first, second):
        sums = builder.add(sums, _by_halves(builder, *pair))
    return sums


def _by_halves(builder: Any, weights: Any, inputs: Any) -> Any:
    """Sixteen sums of the products of two neighbours each, by an instruction for eight of them."""
    dots = llvm_function(builder, "llvm.x86.avx2.pmadd.wd", _HALF_INTS, [_HALF_WORDS] * 2)
    nothing, halves = ir.Constant(_WORDS, ir.Undefined), []
    for start in (0, LANES):
        lanes = ir.Constant(ir.VectorType(INT32, LANES), list(range(start, start + LANES)))
        halves.append(builder.call(dots, [builder.shuffle_vector(each, nothing, lanes) for each in (weights, inputs)]))
    return builder.shuffle_vector(*halves, ir.Constant(INTS, list(range(LANES))))


def write_quantised(
    builder: Any,
    part: Part,
    inputs: Any,
    input_bytes: Any,
    weights: Any,
    column_bytes: Any,
    blocks: Any,
    table: Any,
    table_blocks: Any,
    block_bytes: Any,
    outputs: Any,
    output_bytes: Any,
) -> None:
    """A part of a tile: a loop over blocks around one over a block's steps, and then the sums. A
    tile's step is a block, and there is no table."""
    rows, columns = part.rows, part.columns
    entry, places = builder.block, [(row, column) for row in rows for column in columns]
    outer, inner, after, done = map(builder.function.append_basic_block, ("block", "step", "next", "sums"))
    builder.branch(outer)

    builder.position_at_end(outer)
    block = carried(builder, constant(0), entry)
    sums = {place: carried(builder, numbers(0.0), entry) for place in places}
    of_rows = {
        row: offset(builder, offset(builder, inputs, block, constant(INPUT_BYTES)), constant(row), input_bytes)
        for row in rows
    }
    of_columns = {
        column: offset(builder, offset(builder, weights, block, constant(BLOCK_BYTES)), constant(column), column_bytes)
        for column in columns
    }
    starts = {row: spread(builder, _read(builder, of_rows[row], BLOCK + 4, INT32, 4)) for row in rows}
    builder.branch(inner)

    builder.position_at_end(inner)
    step = carried(builder, constant(0), outer)
    dots = {(row, column): carried(builder, starts[row], outer) for row, column in places}
    read = builder.mul(step, constant(_STEP_BYTES)), builder.mul(step, constant(_STEP_INPUTS))
    lanes = {column: _read(builder, builder.add(of_columns[column], read[0]), 0, INTS, 32) for column in columns}
    ask_for_next(builder, part, weights, column_bytes, offset(builder, read[0], block, constant(BLOCK_BYTES)))
    given = {row: spread(builder, _read(builder, builder.add(of_rows[row], read[1]), 0, INT32, 4)) for row in rows}
    dotted = {(row, column): _dot(builder, dots[row, column], lanes[column], given[row]) for row, column in places}
    repeat(builder, inner, step, constant(_STEPS), dots, dotted, after)

    builder.position_at_end(after)
    scales = {
        column: builder.fpext(_read(builder, of_columns[column], _WEIGHT_BYTES, HALVES, 32), FLOATS)
        for column in columns
    }
    totals = {}
    for row, column in places:
        scale = builder.fmul(scales[column], spread(builder, _read(builder, of_rows[row], BLOCK, FLOAT, 4)))
        dot = builder.sitofp(dotted[row, column], FLOATS)
        totals[row, column] = fuse(builder, dot, scale, sums[row, column])
    repeat(builder, outer, block, blocks, sums, totals, done)

    builder.position_at_end(done)
    for row, column in places:
        to = offset(
            builder, offset(builder, outputs, constant(row), output_bytes), constant(column), constant(4 * LANES)
        )
        builder.store(totals[row, column], at(builder, to, FLOATS), align=4)


def _read(builder: Any, address: Any, place: int, kind: Any, alignment: int) -> Any:
    return builder.load(at(builder, builder.add(address, constant(place)), kind), align=alignment)


@compiled
def quantise(source: int, size: int, to: int) -> None:
    """A row of float32 inputs as blocks: the largest of a block becomes 127 or -127. One that is no
    number makes its block's scale none, so that it is not lost."""
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
    """A matrix as products read it, of its ``numbers`` ``[outputs, inputs]`` in int8 and ``scales``
    ``[outputs, inputs / 32]`` in float16; outputs are a multiple of 16. Bytes
    ``[outputs / 16, inputs / 32, BLOCK_BYTES]``."""
    outputs, inputs = numbers.shape
    packed = np.empty((outputs // LANES, inputs // BLOCK, BLOCK_BYTES), dtype=np.uint8)
    above = numbers.view(np.uint8) ^ np.uint8(OFFSET)
    steps = above.reshape(-1, LANES, inputs // BLOCK, _STEPS, _STEP_INPUTS).transpose(0, 2, 3, 1, 4)
    packed[..., :_WEIGHT_BYTES] = steps.reshape(*packed.shape[:2], _WEIGHT_BYTES)
    by_block = np.ascontiguousarray(scales.reshape(-1, LANES, inputs // BLOCK).transpose(0, 2, 1))
    packed[..., _WEIGHT_BYTES:] = by_block.view(np.uint8)
    return packed
