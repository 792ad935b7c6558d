"""Products of rows and quantised matrices, whose blocks `block_types` describes. Inputs are
quantised too, to eight bits.

A row of inputs is one block after another: 32 numbers of one byte, their scale in float32, -128
times their sum and -128 times that of the last sixteen in int32, and the scale times the sum in
float32.

The products of a block are whole numbers, so they have the same bits however a processor adds them;
the sums of blocks are one chain of fused multiply-adds in their order. Where weights have minima,
each block adds a second one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from slipstream.engine.compiled.block_types import BLOCK, STEP_BYTES, STEP_INPUTS, STEPS, BlockType
from slipstream.engine.compiled.byte_dots import Dots
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
from slipstream.engine.compiled.products import Part, ask_for_next, carried, constant, offset, repeat

INPUT_BYTES = BLOCK + 16
"""Bytes of a block of a row of inputs."""

BESIDE = 4
"""Registers that a step has full beside its sums."""

_SCALE, _SUM, _LAST_SUM, _SCALED_SUM = (BLOCK + 4 * place for place in range(4))
"""Places in a block of inputs."""

_OFFSET_BITS = 7
_OFFSET = 2**_OFFSET_BITS
_LARGEST = np.float32(127.0)
_ZERO = np.float32(0.0)
_LEAST = np.float32(1e-30)
"""Least of a block's largest number. A block below it counts as zeros, for its inverse might be
infinite."""

_BYTES = ir.VectorType(ir.IntType(8), LANES)


class _Factors(NamedTuple):
    """A block's numbers for sixteen outputs: ``scales`` of its parts in whole numbers if it has
    several, ``scale`` of all."""

    scale: Any
    scales: list[Any]
    minimum: Any


def write_products(
    kind: BlockType,
    builder: Any,
    part: Part,
    inputs: Any,
    input_bytes: Any,
    weights: Any,
    column_bytes: Any,
    groups: Any,
    table: Any,
    table_blocks: Any,
    block_bytes: Any,
    outputs: Any,
    output_bytes: Any,
) -> None:
    """A part of a tile: a loop over groups around one over their blocks, and then the sums. A
    tile's step is a group, and there is no table."""
    places, entry = [(row, column) for row in part.rows for column in part.columns], builder.block
    outer, inner, after, done = map(builder.function.append_basic_block, ("group", "block", "next", "sums"))
    builder.branch(outer)

    builder.position_at_end(outer)
    group = carried(builder, constant(0), entry)
    sums = {place: carried(builder, numbers(0.0), entry) for place in places}
    start = offset(builder, weights, group, constant(kind.group_bytes))
    of_columns = {column: offset(builder, start, constant(column), column_bytes) for column in part.columns}
    builder.branch(inner)

    builder.position_at_end(inner)
    block = carried(builder, constant(0), outer)
    running = {place: carried(builder, total, outer) for place, total in sums.items()}
    number = builder.add(builder.mul(group, constant(kind.blocks)), block)
    read = offset(builder, inputs, number, constant(INPUT_BYTES))
    of_rows = {row: offset(builder, read, constant(row), input_bytes) for row in part.rows}
    _ask(builder, kind, part, weights, column_bytes, number)
    totals = _block(builder, kind, of_rows, of_columns, block, running)
    repeat(builder, inner, block, constant(kind.blocks), running, totals, after)

    builder.position_at_end(after)
    repeat(builder, outer, group, groups, sums, totals, done)

    builder.position_at_end(done)
    for row, column in places:
        to = offset(
            builder, offset(builder, outputs, constant(row), output_bytes), constant(column), constant(4 * LANES)
        )
        builder.store(totals[row, column], at(builder, to, FLOATS), align=4)


def _ask(builder: Any, kind: BlockType, part: Part, weights: Any, column_bytes: Any, number: Any) -> None:
    """Prefetch as much as a block has."""
    size = kind.group_bytes // kind.blocks
    for place in range(0, size, STEP_BYTES):
        ask_for_next(builder, part, weights, column_bytes, offset(builder, constant(place), number, constant(size)))


def _block(
    builder: Any, kind: BlockType, of_rows: dict[int, Any], of_columns: dict[int, Any], block: Any, sums: dict[Any, Any]
) -> dict[Any, Any]:
    """The sums after a block, which is the group's so manieth. Places are those of its inputs, and
    those of groups of weights."""
    quants = {column: offset(builder, place, block, constant(kind.quant_bytes)) for column, place in of_columns.items()}
    steps_of_scale, parts = STEPS // kind.scales, []
    for first in range(0, STEPS, steps_of_scale):
        starts = {row: spread(builder, _start(builder, kind, place, first)) for row, place in of_rows.items()}
        dots = Dots(builder, kind.bits, {place: starts[place[0]] for place in sums})
        for step in range(first, first + steps_of_scale):
            dots.add_step(
                {column: _quants(builder, kind, place, step) for column, place in quants.items()},
                {
                    row: spread(builder, _read(builder, place, STEP_INPUTS * step, INT32, 4))
                    for row, place in of_rows.items()
                },
            )
        parts.append(dots.totals())
    factors = {column: _factors(builder, kind, place, block) for column, place in of_columns.items()}
    given = {row: spread(builder, _read(builder, place, _SCALE, FLOAT, 4)) for row, place in of_rows.items()}
    totals = {}
    for (row, column), total in sums.items():
        of_column = factors[column]
        value = _scaled(builder, [builder.sitofp(each[row, column], FLOATS) for each in parts], of_column.scales)
        totals[row, column] = fuse(builder, value, builder.fmul(of_column.scale, given[row]), total)
        if kind.has_minima:
            scaled_sum = spread(builder, _read(builder, of_rows[row], _SCALED_SUM, FLOAT, 4))
            totals[row, column] = fuse(builder, of_column.minimum, scaled_sum, totals[row, column])
    return totals


def _start(builder: Any, kind: BlockType, row: Any, step: int) -> Any:
    """Return what takes off the offset of the weights from a scale's first ``step`` on."""
    if not kind.offset:
        return ir.Constant(INT32, 0)
    total = _read(builder, row, _SUM, INT32, 4)
    if kind.scales > 1:
        last = _read(builder, row, _LAST_SUM, INT32, 4)
        total = last if step else builder.sub(total, last)
    return builder.ashr(total, ir.Constant(INT32, _OFFSET_BITS + 1 - kind.offset.bit_length()))


def _scaled(builder: Any, dots: list[Any], scales: list[Any]) -> Any:
    """Return a block's sum; whole numbers below 2^24, so that nothing is rounded."""
    if not scales:
        return dots[0]
    return fuse(builder, dots[1], scales[1], builder.fmul(dots[0], scales[0]))


def _quants(builder: Any, kind: BlockType, block: Any, step: int) -> Any:
    """Return a step's quants: four bytes in each lane.

    ::

        8 bits     [8 steps][16][4]
        4          [4][16][4]: two steps, the first in the lower bits
        5 and 6    the same of the lower four bits, and then
        5          [16][4]: the highest bits of eight steps
        6          [2][16][4]: the highest two of four steps each
    """
    if kind.bits == 8:
        return _read(builder, block, step * STEP_BYTES, INTS, 16)
    pair = _read(builder, block, step // 2 * STEP_BYTES, INTS, 16)
    low = builder.and_(builder.lshr(pair, integers(4 * (step % 2))), integers(0x0F0F0F0F))
    if kind.bits == 4:
        return low
    bits, mask = kind.bits - 4, 0x10101010 if kind.bits == 5 else 0x30303030
    steps = 8 // bits
    high = _read(builder, block, (STEPS // 2 + step // steps) * STEP_BYTES, INTS, 16)
    shift = 4 - bits * (step % steps)
    high = builder.shl(high, integers(shift)) if shift > 0 else builder.lshr(high, integers(-shift))
    return builder.or_(low, builder.and_(high, integers(mask)))


def _factors(builder: Any, kind: BlockType, group: Any, block: Any) -> _Factors:
    def whole(place: int, number: Any) -> Any:
        address = offset(builder, builder.add(group, constant(place)), number, constant(LANES))
        return builder.sitofp(builder.sext(_read(builder, address, 0, _BYTES, 16), INTS), FLOATS)

    scale, *minima = (
        builder.fpext(_read(builder, group, kind.factors_place + 2 * LANES * place, HALVES, 16), FLOATS)
        for place in range(1 + kind.has_minima)
    )
    if kind.blocks == 1:
        return _Factors(scale, [], minima[0] if minima else None)
    minimum = builder.fmul(minima[0], whole(kind.minima_place, block)) if minima else None
    first = builder.mul(block, constant(kind.scales))
    scales = [whole(kind.scales_place, builder.add(first, constant(each))) for each in range(kind.scales)]
    if kind.scales == 1:
        return _Factors(builder.fmul(scale, scales[0]), [], minimum)
    return _Factors(scale, scales, minimum)


def write_weights(
    kind: BlockType,
    builder: Any,
    inputs: Any,
    input_bytes: Any,
    weights: Any,
    column_bytes: Any,
    groups: Any,
    table: Any,
    table_blocks: Any,
    block_bytes: Any,
    outputs: Any,
    output_bytes: Any,
) -> None:
    """Write the weights of a group, ``[inputs][16]`` in float32."""
    entry = builder.block
    loop, done = map(builder.function.append_basic_block, ("block", "written"))
    builder.branch(loop)
    builder.position_at_end(loop)
    block = carried(builder, constant(0), entry)
    quants = offset(builder, weights, block, constant(kind.quant_bytes))
    factors = _factors(builder, kind, weights, block)
    to = offset(builder, outputs, block, constant(4 * LANES * BLOCK))
    for step in range(STEPS):
        four = _quants(builder, kind, quants, step)
        scale = factors.scale
        if factors.scales:
            scale = builder.fmul(scale, factors.scales[step * kind.scales // STEPS])
        for place in range(STEP_INPUTS):
            quant = builder.and_(builder.lshr(four, integers(8 * place)), integers(0xFF))
            weight = builder.fmul(builder.sitofp(builder.sub(quant, integers(kind.offset)), FLOATS), scale)
            if kind.has_minima:
                weight = builder.fadd(weight, factors.minimum)
            row = builder.add(to, constant(4 * LANES * (STEP_INPUTS * step + place)))
            builder.store(weight, at(builder, row, FLOATS), align=4)
    repeat(builder, loop, block, constant(kind.blocks), {}, {}, done)
    builder.position_at_end(done)


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
        scale = np.float32(largest / _LARGEST) + (total - total)
        whole, last = sum_of(add(first, second)), sum_of(second)
        store_bytes(block, first)
        store_bytes(block + LANES, second)
        write_number(block + _SCALE, scale)
        write_integer(block + _SUM, -_OFFSET * int(whole))
        write_integer(block + _LAST_SUM, -_OFFSET * int(last))
        write_number(block + _SCALED_SUM, scale * whole)
