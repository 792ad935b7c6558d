"""Products by a processor's matrix unit (AMX): sixteen rows by sixteen outputs by 32 inputs in one
instruction.

Matrices, keys and values lie as `products` has them: what a chain takes in sixteen steps, a
kilobyte, is one operand of the unit as it is. An instruction sums the products of its 32 inputs (16
where they are values) by two chains of fused multiply-adds: one of the even inputs and one of the
odd ones. It adds these two, and the result to the sum. Numbers below the smallest normal one are 0.
So a sum's bits depend on its own row and output alone, here too, but they are not those of
`products`: `products.BF16_INSTRUCTION` says which they are.

The unit always takes sixteen rows: what lies after the last is multiplied too, and its result is
never read. Each thread opens the unit before, and closes it after. Otherwise the system
would save its contents whenever the thread rests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from slipstream.engine.compiled.lanes import INT64, Code, at, llvm_function, operation
from slipstream.engine.compiled.processor import HAS_MATRICES
from slipstream.engine.compiled.products import INPUT_BYTES, STEP_BYTES, carried, constant, offset, repeat

MATRIX_ROWS = 16
"""Rows of an operand of inputs, and of one of sums."""

MOST_ROWS = 2 * MATRIX_ROWS
"""Most rows of a tile: weights come from memory once for all of them."""

_LINE = 64
_BYTE = ir.IntType(8)
_ADDRESS = _BYTE.as_pointer()


class _Operands(NamedTuple):
    """By their numbers; there are eight: ``sums`` of each sixteen rows by each sixteen outputs,
    ``inputs`` of each sixteen rows, ``weights`` of each sixteen outputs, these two for so many
    ``steps`` at a time."""

    sums: tuple[tuple[int, ...], ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    steps: int = 16


_SIXTEEN = _Operands(sums=((0, 1),), inputs=(4,), weights=(6, 7))
_THIRTY_TWO = _Operands(sums=((0, 1), (2, 3)), inputs=(4, 5), weights=(6, 7))
_KEYS = _Operands(sums=((0,),), inputs=(4,), weights=(6,))
_VALUES = _Operands(sums=((0, 1),), inputs=(5,), weights=(2, 3), steps=8)


def write_matrix_products(builder: Any, rows: Any, *values: Any) -> None:
    """A tile of up to `MOST_ROWS` rows of a matrix and 32 outputs. What it is told is as in
    `tiles`, as of the next two."""
    one, both, done = map(builder.function.append_basic_block, ("sixteen", "thirty_two", "written"))
    builder.cbranch(builder.icmp_signed("<=", rows, constant(MATRIX_ROWS)), one, both)
    for block, operands in ((one, _SIXTEEN), (both, _THIRTY_TWO)):
        builder.position_at_end(block)
        _write(builder, operands, *values)
        builder.branch(done)
    builder.position_at_end(done)


def write_matrix_scores(builder: Any, rows: Any, *values: Any) -> None:
    """Write the scores of up to `MATRIX_ROWS` queries for a block of keys."""
    _write(builder, _KEYS, *values)


def write_matrix_values(builder: Any, rows: Any, *values: Any) -> None:
    """Write 32 sums of values for each of up to `MATRIX_ROWS` queries, over blocks of sixteen
    tokens, which are eight steps."""
    _write(builder, _VALUES, *values)


def _write(
    builder: Any,
    operands: _Operands,
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
    """A loop over blocks around one over steps, and then the sums. A block's ``steps`` are a
    multiple of what operands take at a time."""
    entry = builder.block
    outer, inner, after, end = map(builder.function.append_basic_block, ("block", "steps", "next", "sums"))
    at_once, step_bytes = constant(operands.steps), constant(INPUT_BYTES)
    places = [(operand, group, column) for group, row in enumerate(operands.sums) for column, operand in enumerate(row)]
    for operand, _, _ in places:
        _call(builder, "tilezero", operand)
    builder.branch(outer)

    builder.position_at_end(outer)
    block, read = carried(builder, constant(0), entry), carried(builder, inputs, entry)
    number = builder.load(at(builder, offset(builder, table, block, constant(8)), INT64), align=8)
    start = offset(builder, weights, number, block_bytes)
    builder.branch(inner)

    builder.position_at_end(inner)
    turn = carried(builder, constant(0), outer)
    step = builder.mul(turn, at_once)
    _load(
        builder,
        operands.weights,
        offset(builder, start, step, constant(STEP_BYTES)),
        column_bytes,
        constant(STEP_BYTES),
    )
    group_bytes = builder.mul(constant(MATRIX_ROWS), input_bytes)
    _load(builder, operands.inputs, offset(builder, read, step, step_bytes), group_bytes, input_bytes)
    for operand, group, column in places:
        _call(builder, "tdpbf16ps", operand, operands.inputs[group], operands.weights[column])
    repeat(builder, inner, turn, builder.udiv(steps, at_once), {}, {}, after)

    builder.position_at_end(after)
    read.add_incoming(offset(builder, read, steps, step_bytes), after)
    repeat(builder, outer, block, blocks, {}, {}, end)

    builder.position_at_end(end)
    for operand, group, column in places:
        place = offset(builder, outputs, constant(group * MATRIX_ROWS), output_bytes)
        place = offset(builder, place, constant(column), constant(_LINE))
        _move(builder, "tilestored64", operand, place, output_bytes)


def _load(builder: Any, operands: tuple[int, ...], place: Any, next_bytes: Any, row_bytes: Any) -> None:
    """One operand after another from a place on, ``next_bytes`` apart."""
    for number, operand in enumerate(operands):
        _move(builder, "tileloadd64", operand, offset(builder, place, constant(number), next_bytes), row_bytes)


def _move(builder: Any, name: str, operand: int, place: Any, row_bytes: Any) -> None:
    function = llvm_function(builder, f"llvm.x86.{name}", ir.VoidType(), [_BYTE, _ADDRESS, INT64])
    builder.call(function, [ir.Constant(_BYTE, operand), builder.inttoptr(place, _ADDRESS), row_bytes])


def _call(builder: Any, name: str, *operands: int) -> None:
    function = llvm_function(builder, f"llvm.x86.{name}", ir.VoidType(), [_BYTE] * len(operands))
    builder.call(function, [ir.Constant(_BYTE, operand) for operand in operands])


def _opening(*used: _Operands) -> Code:
    """Return code that gives the unit's operands the shapes that tiles use."""
    shapes: dict[int, tuple[int, int]] = {}
    for operands in used:
        shapes |= {number: (MATRIX_ROWS, _LINE) for row in operands.sums for number in row}
        shapes |= dict.fromkeys(operands.inputs, (MATRIX_ROWS, INPUT_BYTES * operands.steps))
        shapes |= dict.fromkeys(operands.weights, (operands.steps, STEP_BYTES))
    palette, row_bytes, rows = bytes([1, *[0] * 15]), bytearray(32), bytearray(16)
    for number, (row_count, size) in shapes.items():
        row_bytes[2 * number], rows[number] = size, row_count
    told = bytearray(palette + row_bytes + rows)

    def build(builder: Any) -> None:
        if HAS_MATRICES:
            place = builder.bitcast(_kept(builder.module, told), _ADDRESS)
            builder.call(llvm_function(builder, "llvm.x86.ldtilecfg", ir.VoidType(), [_ADDRESS]), [place])

    return build


def _kept(module: Any, told: bytearray) -> Any:
    """Return the place in a module of what `ldtilecfg` reads."""
    name = f"shapes_{told.hex()}"
    known = module.globals.get(name)
    if known is not None:
        return known
    kept = ir.GlobalVariable(module, ir.ArrayType(_BYTE, len(told)), name)
    kept.initializer, kept.global_constant = ir.Constant(kept.value_type, told), True
    kept.linkage, kept.align = "internal", _LINE
    return kept


def _close(builder: Any) -> None:
    if HAS_MATRICES:
        builder.call(llvm_function(builder, "llvm.x86.tilerelease", ir.VoidType(), []), [])


open_for_products = operation(types.void, (), _opening(_SIXTEEN, _THIRTY_TWO))
"""Have the unit ready for tiles of matrices, in this thread; nothing where there is none."""

open_for_attention = operation(types.void, (), _opening(_KEYS, _VALUES))
"""The same for scores and values, in place of matrices."""

close_matrices = operation(types.void, (), _close)
"""Close the unit and clear it."""
