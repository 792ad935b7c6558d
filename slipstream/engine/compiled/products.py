"""Products of rows and matrices, tile by tile. Each sum is one chain of operations and does not
depend on the rest of its tile.

A matrix ``[outputs, inputs]`` lies as ``[outputs / 16][steps][16]``: what a step of a chain needs
of sixteen outputs is one vector of 64 bytes. In float32 a step takes one input; in bfloat16 two,
which lie in four bytes. So a step takes four bytes of a row of inputs and 64 of weights in either,
and addresses are the same. In float16 a step takes two inputs in float32, one after the other.

bfloat16 steps are one instruction where the processor has it (AVX-512 BF16), and two fused
multiply-adds elsewhere; the two differ in their last bits, and `BF16_INSTRUCTION` says which it is.
For two multiply-adds a row's inputs lie there as float32 (`WIDENED`). Otherwise they would be
widened again for each sixteen outputs, which is a fifth of all instructions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from slipstream.engine.compiled.lanes import (
    FLOATS,
    INT32,
    INT64,
    INTS,
    LANES,
    Code,
    at,
    fuse,
    integers,
    llvm_function,
    numbers,
    spread,
)
from slipstream.engine.compiled.processor import HAS_BFLOAT16_DOTS, HAS_MATRICES

TILE_COLUMNS = 2 * LANES
"""Outputs of a tile: a thread's share is whole tiles."""

TILE_ROWS = 8
"""Rows of a tile, at most: a weight comes from memory once for all of them."""

STEP_BYTES = 64
"""Bytes of weights in a step, for sixteen outputs."""

INPUT_BYTES = 4
"""Bytes of a row of inputs in a step, unless they are widened."""

BF16_INSTRUCTION = "tdpbf16ps" if HAS_MATRICES else "dpbf16ps" if HAS_BFLOAT16_DOTS else "fma"
"""The instruction by which bfloat16 products join a sum: the matrix unit's (`matrices`), or one of
this module."""

WIDENED = BF16_INSTRUCTION == "fma"
"""True if inputs that are rounded to bfloat16 are stored as float32."""

BF16_BESIDE, FLOAT_BESIDE = 4, 2
"""Registers that a step has full beside its sums: of weights and inputs, taken apart in
bfloat16."""


class Part(NamedTuple):
    """A part of a tile: rows, and columns of sixteen outputs. All parts of the same columns
    prefetch as many columns after these. ``asking``: this part prefetches its share, given as its
    number and how many there are."""

    rows: range
    columns: range
    asking: tuple[int, int] | None


class _Brain(ir.Type):  # type: ignore[misc] # llvmlite is untyped, and has no such type
    """LLVM's bfloat."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Brain)

    def __hash__(self) -> int:
        return hash(_Brain)


def _bf16_step(builder: Any, total: Any, weights: Any, *inputs: Any) -> Any:
    """Add the products of a step: of two bfloat16 in each lane's 32 bits, and as many inputs, in
    one lane or one after the other."""
    if HAS_BFLOAT16_DOTS:
        pairs = ir.VectorType(_Brain(), 2 * LANES)
        products = llvm_function(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, [FLOATS, pairs, pairs])
        return builder.call(products, [total, builder.bitcast(weights, pairs), builder.bitcast(inputs[0], pairs)])

    return _wide_bf16_step(builder, total, weights, *inputs)


def _wide_bf16_step(builder: Any, total: Any, weights: Any, *inputs: Any) -> Any:
    """The same by multiply-adds, of inputs in float32."""
    first = builder.bitcast(builder.shl(weights, integers(16)), FLOATS)
    second = builder.bitcast(builder.and_(weights, integers(0xFFFF0000)), FLOATS)
    total = fuse(builder, first, builder.bitcast(inputs[0], FLOATS), total)
    return fuse(builder, second, builder.bitcast(inputs[1], FLOATS), total)


def _halves_step(builder: Any, total: Any, weights: Any, *inputs: Any) -> Any:
    """The same of float16: sixteen outputs of an input, and then of the next."""
    pairs = builder.bitcast(weights, ir.VectorType(ir.HalfType(), 2 * LANES))
    nothing = ir.Constant(pairs.type, ir.Undefined)
    for place, each in enumerate(inputs):
        lanes = ir.Constant(INTS, list(range(place * LANES, (place + 1) * LANES)))
        halves = builder.fpext(builder.shuffle_vector(pairs, nothing, lanes), FLOATS)
        total = fuse(builder, halves, builder.bitcast(each, FLOATS), total)
    return total


def _float_step(builder: Any, total: Any, weights: Any, inputs: Any) -> Any:
    return fuse(builder, builder.bitcast(weights, FLOATS), builder.bitcast(inputs, FLOATS), total)


def write_bf16(builder: Any, part: Part, *values: Any) -> None:
    """A part of a tile in bfloat16."""
    _Tile(builder, part, _bf16_step, 2 if WIDENED else 1).write(*values)


def write_wide_bf16(builder: Any, part: Part, *values: Any) -> None:
    """The same with inputs in float32."""
    _Tile(builder, part, _wide_bf16_step, 2).write(*values)


def write_halves(builder: Any, part: Part, *values: Any) -> None:
    """The same in float16, with inputs in float32."""
    _Tile(builder, part, _halves_step, 2).write(*values)


def write_float(builder: Any, part: Part, *values: Any) -> None:
    """The same in float32."""
    _Tile(builder, part, _float_step, 1).write(*values)


class _Tile:
    """The instructions of a part of a tile."""

    def __init__(self, builder: Any, part: Part, step: Code, input_count: int) -> None:
        """``step`` adds what a step of a chain adds, of so many times four bytes of inputs."""
        self._builder = builder
        self._part, self._rows, self._columns = part, part.rows, part.columns
        self._places = [(row, column) for row in self._rows for column in self._columns]
        self._step = step
        self._input_count = input_count

    def write(
        self,
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
        """A loop over blocks around one over steps, and then the sums. ``table`` has the blocks'
        places in the ``weights``; inputs go on from one to the next."""
        builder, entry = self._builder, self._builder.block
        outer, inner, after, done = map(builder.function.append_basic_block, ("block", "step", "next", "sums"))
        builder.branch(outer)

        builder.position_at_end(outer)
        block = self._carried(constant(0), entry)
        read = self._carried(inputs, entry)
        sums = {place: self._carried(numbers(0.0), entry) for place in self._places}
        number = builder.load(at(builder, self._offset(table, block, constant(8)), INT64), align=8)
        start = self._offset(weights, number, block_bytes)
        builder.branch(inner)

        builder.position_at_end(inner)
        place_in_block = self._carried(constant(0), outer)
        running = {place: self._carried(total, outer) for place, total in sums.items()}
        totals = self._stepped(running, read, input_bytes, start, column_bytes, place_in_block)
        repeat(builder, inner, place_in_block, steps, running, totals, after)

        builder.position_at_end(after)
        read.add_incoming(self._offset(read, steps, constant(self._input_count * INPUT_BYTES)), after)
        repeat(builder, outer, block, blocks, sums, totals, done)

        builder.position_at_end(done)
        for row, column in self._places:
            to = self._offset(outputs, constant(row), output_bytes)
            to = self._offset(to, constant(column), constant(4 * LANES))
            builder.store(totals[row, column], at(builder, to, FLOATS), align=4)

    def _stepped(
        self, sums: dict[Any, Any], inputs: Any, input_bytes: Any, weights: Any, column_bytes: Any, place: Any
    ) -> dict[Any, Any]:
        builder = self._builder
        read = builder.mul(place, constant(STEP_BYTES))
        ask_for_next(builder, self._part, weights, column_bytes, read)
        weights = builder.add(weights, read)
        inputs = builder.add(inputs, builder.mul(place, constant(self._input_count * INPUT_BYTES)))
        lanes = {
            column: builder.load(at(builder, self._offset(weights, constant(column), column_bytes), INTS), align=64)
            for column in self._columns
        }
        given = {row: self._given(self._offset(inputs, constant(row), input_bytes)) for row in self._rows}
        return {
            (row, column): self._step(builder, sums[row, column], lanes[column], *given[row])
            for row, column in self._places
        }

    def _given(self, address: Any) -> list[Any]:
        """A row's inputs in a step, each four bytes in every lane."""
        places = [self._offset(address, constant(number), constant(INPUT_BYTES)) for number in range(self._input_count)]
        return [spread(self._builder, self._builder.load(at(self._builder, place, INT32), align=4)) for place in places]

    def _carried(self, start: Any, block: Any) -> Any:
        return carried(self._builder, start, block)

    def _offset(self, base: Any, count: Any, size: Any) -> Any:
        return offset(self._builder, base, count, size)


def carried(builder: Any, start: Any, block: Any) -> Any:
    """A value that a loop carries on, and that comes from a ``block`` as ``start``."""
    phi = builder.phi(start.type)
    phi.add_incoming(start, block)
    return phi


def repeat(
    builder: Any, loop: Any, counter: Any, end: Any, carried: dict[Any, Any], totals: dict[Any, Any], then: Any
) -> None:
    """Go on with a loop until its counter has come to the ``end``; what is ``carried`` goes on as
    its ``totals``."""
    following = builder.add(counter, constant(1))
    counter.add_incoming(following, builder.block)
    for place, phi in carried.items():
        phi.add_incoming(totals[place], builder.block)
    builder.cbranch(builder.icmp_signed("<", following, end), loop, then)


def ask_for_next(builder: Any, part: Part, weights: Any, column_bytes: Any, read: Any) -> None:
    """Prefetch for a step of a part, before which so many bytes of each column have been
    ``read``."""
    if part.asking is None:
        return
    number, count = part.asking
    place = builder.add(builder.mul(column_bytes, constant(number)), read)
    for column in part.columns:
        following = offset(builder, weights, constant(column + len(part.columns)), column_bytes)
        _ask(builder, builder.add(following, builder.udiv(place, constant(count))))


def _ask(builder: Any, address: Any) -> None:
    """Have what is there brought to the second cache. There need not be any memory."""
    byte, to_read, locality, data = ir.IntType(8).as_pointer(), 0, 2, 1
    function = llvm_function(builder, "llvm.prefetch.p0i8", ir.VoidType(), [byte, *[INT32] * 3])
    how = [ir.Constant(INT32, number) for number in (to_read, locality, data)]
    builder.call(function, [builder.inttoptr(address, byte), *how])


def offset(builder: Any, base: Any, count: Any, size: Any) -> Any:
    """An address so many times a size on."""
    return builder.add(base, builder.mul(count, size))


def constant(number: int) -> Any:
    """A whole number of 64 bits."""
    return ir.Constant(INT64, number)
