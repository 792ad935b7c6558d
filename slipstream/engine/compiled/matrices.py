"""Products by a processor's matrix unit (AMX): sixteen rows by sixteen outputs by 32 inputs in one instruction.

Matrices lie as `products` has them: what a chain takes in sixteen steps, a kilobyte, is one operand of the unit as it is. An
instruction sums the products of its 32 inputs by two chains of fused multiply-adds, one of the even and one of the odd, adds the two,
and that to the sum; numbers below the smallest normal one are 0. So a sum's bits depend on its own row and output alone, here too,
but they are not those of `products`: `products.PAIRED_BY` says which they are.

The unit always takes sixteen rows: what lies after the last is multiplied too, and nobody reads what comes of it. It has to be
`opened` by each thread before, and `closed` after, or the system would save what is in it whenever the thread rests.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from slipstream.engine.compiled.lanes import INT64, at, llvm_function, operation
from slipstream.engine.compiled.processor import HAS_MATRICES
from slipstream.engine.compiled.products import STEP_BYTES, carried, constant, offset, repeat

MATRIX_ROWS = 16
"""Of one of its operands."""

MOST_ROWS = 2 * MATRIX_ROWS
"""Of a tile: weights come from memory once for all of them."""

_STEPS = 16
_WEIGHT_BYTES = _STEPS * STEP_BYTES
_ROW_BYTES = 64
_BYTE, _SHORT = ir.IntType(8), ir.IntType(16)
_ADDRESS = _BYTE.as_pointer()

_SUMS, _INPUTS, _WEIGHTS = ((0, 1), (2, 3)), (4, 5), (6, 7)
"""Its eight operands: sums of each sixteen rows by each sixteen outputs, inputs of each sixteen rows, weights of each sixteen
outputs."""


def write_matrix_products(builder: Any, rows: Any, *values: Any) -> None:
    """A tile of up to `MOST_ROWS` rows and 32 outputs; what it is told is as in `tiles`, and its steps are a multiple of
    sixteen."""
    one, both, done = map(builder.function.append_basic_block, ("sixteen", "thirty_two", "written"))
    builder.cbranch(builder.icmp_signed("<=", rows, constant(MATRIX_ROWS)), one, both)
    for block, groups in ((one, 1), (both, 2)):
        builder.position_at_end(block)
        _write(builder, groups, *values)
        builder.branch(done)
    builder.position_at_end(done)


def _write(
    builder: Any,
    groups: int,
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
    """A loop over blocks around one over sixteen steps, and then the sums of so many ``groups`` of rows."""
    entry = builder.block
    outer, inner, after, end = map(builder.function.append_basic_block, ("block", "steps", "next", "sums"))
    places = [(group, column) for group in range(groups) for column in range(len(_WEIGHTS))]
    for group, column in places:
        _call(builder, "tilezero", _SUMS[group][column])
    builder.branch(outer)

    builder.position_at_end(outer)
    block, read = carried(builder, constant(0), entry), carried(builder, inputs, entry)
    number = builder.load(at(builder, offset(builder, table, block, constant(8)), INT64), align=8)
    start = offset(builder, weights, number, block_bytes)
    builder.branch(inner)

    builder.position_at_end(inner)
    step = carried(builder, constant(0), outer)
    for column, operand in enumerate(_WEIGHTS):
        place = offset(builder, start, constant(column), column_bytes)
        _load(builder, operand, offset(builder, place, step, constant(_WEIGHT_BYTES)), constant(STEP_BYTES))
    for group in range(groups):
        place = offset(builder, read, constant(group * MATRIX_ROWS), input_bytes)
        _load(builder, _INPUTS[group], offset(builder, place, step, constant(_ROW_BYTES)), input_bytes)
    for group, column in places:
        _call(builder, "tdpbf16ps", _SUMS[group][column], _INPUTS[group], _WEIGHTS[column])
    repeat(builder, inner, step, builder.udiv(steps, constant(_STEPS)), {}, {}, after)

    builder.position_at_end(after)
    read.add_incoming(offset(builder, read, steps, constant(4)), after)
    repeat(builder, outer, block, blocks, {}, {}, end)

    builder.position_at_end(end)
    for group, column in places:
        place = offset(builder, outputs, constant(group * MATRIX_ROWS), output_bytes)
        _move(
            builder, "tilestored64", _SUMS[group][column], builder.add(place, constant(column * _ROW_BYTES)), output_bytes
        )


def _load(builder: Any, operand: int, place: Any, row_bytes: Any) -> None:
    _move(builder, "tileloadd64", operand, place, row_bytes)


def _move(builder: Any, name: str, operand: int, place: Any, row_bytes: Any) -> None:
    of = [_BYTE, _ADDRESS, INT64]
    function = llvm_function(builder, f"llvm.x86.{name}", ir.VoidType(), of)
    builder.call(function, [ir.Constant(_BYTE, operand), builder.inttoptr(place, _ADDRESS), row_bytes])


def _call(builder: Any, name: str, *operands: int) -> None:
    function = llvm_function(builder, f"llvm.x86.{name}", ir.VoidType(), [_BYTE] * len(operands))
    builder.call(function, [ir.Constant(_BYTE, operand) for operand in operands])


def _open(builder: Any) -> None:
    """All operands have sixteen rows of 64 bytes."""
    if not HAS_MATRICES:
        return
    function = llvm_function(builder, "llvm.x86.ldtilecfg", ir.VoidType(), [_ADDRESS])
    builder.call(function, [builder.bitcast(_shape(builder.module), _ADDRESS)])


def _shape(module: Any) -> Any:
    """What `ldtilecfg` reads: a palette, bytes of each operand's rows, and how many rows each has."""
    known = module.globals.get("matrix_shape")
    if known is not None:
        return known
    count = 2 * len(_SUMS) + len(_INPUTS) + len(_WEIGHTS)
    row_bytes, rows = [_ROW_BYTES, 0] * count, [MATRIX_ROWS] * count
    told = bytearray([1, *[0] * 15, *row_bytes, *[0] * (32 - len(row_bytes)), *rows, *[0] * (16 - count)])
    shape = ir.GlobalVariable(module, ir.ArrayType(_BYTE, len(told)), "matrix_shape")
    shape.initializer, shape.global_constant = ir.Constant(shape.value_type, told), True
    shape.linkage, shape.align = "internal", 64
    return shape


def _close(builder: Any) -> None:
    if HAS_MATRICES:
        builder.call(llvm_function(builder, "llvm.x86.tilerelease", ir.VoidType(), []), [])


open_matrices = operation(types.void, (), _open)
"""Have the unit ready for this thread; nothing where there is none."""

close_matrices = operation(types.void, (), _close)
"""Nothing is left in it."""
