"""All of a compiled forward that is compiled: products, norms, rotary positions, attention, and the walk through the layers.

It is one file, and imports nothing of ours: Numba keeps what it has compiled by the file that a function is in, and would go on
with old code if something that is compiled into it had changed in another.

**A row's bits depend on its own sequence alone**, by construction and not by padding: each number that is computed is one chain
of operations, in an order that only the model's shape decides. Vectors have sixteen lanes, which are sixteen outputs and never
parts of one sum, but where a row is summed over (norms, softmax): lane by lane then, and the lanes as a tree. How many rows are
computed beside it, in which thread, and in how many pieces changes nothing of a row.

**Sixteen columns lie together.** A matrix ``[outputs, inputs]`` is stored as ``[outputs / 16][steps][16]``: what a step of a
chain needs of sixteen outputs is one vector of 64 bytes. In float32 a step takes one input; in bfloat16 two, which lie in four
bytes. So a step takes four bytes of a row of inputs and 64 of weights in either, and addresses are the same. Keys of a block of
sixteen tokens lie like a matrix whose outputs are the tokens, values like one whose inputs are: attention is products too.

bfloat16 steps are one instruction where the processor has it (AVX-512 BF16), and two fused multiply-adds elsewhere; the two
differ in their last bits, and `PAIRED_BY` says which it is.

Threads are those of the OpenMP team that torch has, so that there is one team: all run `forward`, each its share of columns, rows
or heads, and wait for one another between phases.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm
import numba
import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic, models, register_model

Function = TypeVar("Function", bound=Callable[..., Any])

LANES = 16
"""Outputs that are computed together, and tokens in a block of keys."""

TILE_COLUMNS = 2 * LANES
"""Outputs of a tile: a thread's share is whole tiles."""

TILE_ROWS = 8
"""Rows of a tile, at most: their sums stay in registers, and a weight is read once for all of them."""

_STEP_BYTES = 64
"""Of weights for sixteen outputs."""

_INPUT_BYTES = 4
"""Of a row of inputs in a step."""

_FEATURES = llvm.get_host_cpu_features()
PAIRED_BY = "dpbf16ps" if _FEATURES.get("avx512bf16") else "fma"
"""How two bfloat16 products join a sum."""

STEP = np.dtype(
    [
        (name, np.int64)
        for name in (
            # the model's shape
            "hidden_size",
            "head_count",
            "kv_head_count",
            "head_size",
            "feed_forward",
            "vocabulary_columns",
            "layer_count",
            "paired",
            # where its weights are
            "embedding",
            "final_norm",
            "head",
            "layers",
            "frequencies",
            # the step's rows
            "row_count",
            "wanted_count",
            "ids",
            "positions",
            "slots",
            "wanted",
            # parts of attention: first row, count of rows and block table of each
            "part_count",
            "part_rows",
            "part_counts",
            "part_tables",
            # where is computed
            "residual",
            "inputs",
            "projected",
            "queries",
            "gated",
            "rotations",
            "logits",
            "scratch",
            "scratch_bytes",
            "longest",
            "origin",
        )
    ]
    + [("epsilon", np.float64), ("rotation_scale", np.float64), ("attention_scale", np.float64)]
)
"""What `forward` is told. Places are addresses; ``longest`` is the keys of the longest sequence, rounded up to whole blocks."""

LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (
            "attention_norm",
            "projection",
            "projection_bias",
            "query_norm",
            "key_norm",
            "output",
            "output_bias",
            "feed_norm",
            "gate_up",
            "gate_up_bias",
            "down",
            "down_bias",
            "keys",
            "values",
            "window",
        )
    ]
)
"""A layer: addresses, 0 for what it has not; and how many keys a query sees at most, 0 for all."""


def compiled(function: Function) -> Function:
    """A function compiled to machine code."""
    try:
        return cast(Function, numba.njit(nogil=True, cache=True, error_model="numpy")(function))
    except RuntimeError:  # there is no folder to keep it in: compiled anew by each process then
        return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))


# Sixteen float32 numbers as one value.

_FLOAT, _INT16, _INT32, _INT64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT32, LANES)
_SHORTS = ir.VectorType(_INT16, LANES)


class _Brain(ir.Type):  # type: ignore[misc] # llvmlite is untyped, and has no such type
    """LLVM's bfloat."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Brain)

    def __hash__(self) -> int:
        return hash(_Brain)


class _Vector(types.Type):  # type: ignore[misc] # Numba is untyped
    def __init__(self) -> None:
        super().__init__(name="sixteen_float32")


vector = _Vector()
register_model(_Vector)(
    type(
        "_VectorModel",
        (models.PrimitiveModel,),
        {"__init__": lambda self, manager, kind: models.PrimitiveModel.__init__(self, manager, kind, _FLOATS)},
    )
)

Code = Callable[..., Any]


def _splat(builder: Any, scalar: Any) -> Any:
    of = ir.VectorType(scalar.type, LANES)
    alone = builder.insert_element(ir.Constant(of, ir.Undefined), scalar, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(alone, ir.Constant(of, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def _numbers(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * LANES)


def _at(builder: Any, address: Any, of: Any) -> Any:
    return builder.inttoptr(address, of.as_pointer())


def _function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def _fused(builder: Any, first: Any, second: Any, third: Any) -> Any:
    multiply_add = _function(builder, "llvm.fma.v16f32", _FLOATS, [_FLOATS] * 3)
    return builder.call(multiply_add, [first, second, third])


def _vector_operation(result: Any, arguments: tuple[Any, ...], build: Code) -> Any:
    """An operation that is a few instructions."""

    def typed(context: Any, *given: Any) -> tuple[Any, Code]:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            made = build(builder, *values)
            return context.get_dummy_value() if made is None else made

        return result(*arguments), code

    by_arity: dict[int, Code] = {  # Numba wants to count a function's arguments
        1: lambda context, a: typed(context, a),
        2: lambda context, a, b: typed(context, a, b),
        3: lambda context, a, b, c: typed(context, a, b, c),
        4: lambda context, a, b, c, d: typed(context, a, b, c, d),
    }
    return intrinsic(by_arity[len(arguments)])


def _load(builder: Any, address: Any) -> Any:
    return builder.load(_at(builder, address, _FLOATS), align=4)


def _load_halves(builder: Any, address: Any) -> Any:
    halves = builder.load(_at(builder, address, _SHORTS), align=2)
    return builder.bitcast(builder.shl(builder.zext(halves, _INTS), ir.Constant(_INTS, [16] * LANES)), _FLOATS)


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, _at(builder, address, _FLOATS), align=4)


def _rounded(builder: Any, bits: Any, value: Any) -> Any:
    """Upper halves of float32 bits, rounded to the nearest, ties to even; what is no number stays none."""
    kind = bits.type

    def constant(number: int) -> Any:
        return ir.Constant(kind, [number] * LANES if kind == _INTS else number)

    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, constant(0x7FFF))), constant(16))
    return builder.select(builder.fcmp_unordered("uno", value, value), constant(0x7FC0), rounded)


def _store_halves(builder: Any, address: Any, value: Any) -> None:
    halves = _rounded(builder, builder.bitcast(value, _INTS), value)
    builder.store(builder.trunc(halves, _SHORTS), _at(builder, address, _SHORTS), align=2)


def _tree(builder: Any, value: Any, join: Code) -> Any:
    width = LANES
    while width > 1:
        width //= 2
        halves = [
            builder.shuffle_vector(
                value,
                ir.Constant(value.type, ir.Undefined),
                ir.Constant(ir.VectorType(_INT32, width), list(range(start, start + width))),
            )
            for start in (0, width)
        ]
        value = join(*halves)
    return builder.extract_element(value, ir.Constant(_INT32, 0))


def _larger(builder: Any, first: Any, second: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", first, second), first, second)


def _exponential(builder: Any, exponent: Any) -> Any:
    """Of numbers of at most 88; below -87 it is 0. As Cephes' expf has it (Moshier 1989): a power of two and a polynomial."""
    kept = _larger(builder, exponent, _numbers(-87.0))
    shift = _numbers(1.5 * 2**23)
    power = builder.fsub(_fused(builder, kept, _numbers(1.44269504088896341), shift), shift)
    rest = _fused(builder, power, _numbers(-0.693359375), kept)
    rest = _fused(builder, power, _numbers(2.12194440e-4), rest)
    value = _numbers(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        value = _fused(builder, value, rest, _numbers(factor))
    value = builder.fadd(_fused(builder, builder.fmul(rest, rest), value, rest), _numbers(1.0))
    whole = builder.fptosi(power, _INTS)
    scale = builder.shl(builder.add(whole, ir.Constant(_INTS, [127] * LANES)), ir.Constant(_INTS, [23] * LANES))
    value = builder.fmul(value, builder.bitcast(scale, _FLOATS))
    value = builder.select(builder.fcmp_ordered(">=", exponent, _numbers(-87.0)), value, _numbers(0.0))
    return builder.select(builder.fcmp_unordered("uno", exponent, exponent), exponent, value)


def _gated(builder: Any, gate: Any, up: Any) -> Any:
    """silu(gate) * up, where silu(x) is x / (1 + exp(-x)); an exponential beyond 88 would be none."""
    negative = builder.fsub(_numbers(0.0), gate)
    bounded = builder.select(builder.fcmp_ordered(">", negative, _numbers(88.0)), _numbers(88.0), negative)
    silu = builder.fdiv(gate, builder.fadd(_numbers(1.0), _exponential(builder, bounded)))
    return builder.fmul(silu, up)


def _between(builder: Any, value: Any, first: Any, end: Any, other: Any) -> Any:
    """The lanes from ``first`` to before ``end``, the rest as ``other`` says."""
    lanes = ir.Constant(_INTS, list(range(LANES)))
    start, stop = (_splat(builder, builder.trunc(bound, _INT32)) for bound in (first, end))
    inside = builder.and_(builder.icmp_signed(">=", lanes, start), builder.icmp_signed("<", lanes, stop))
    return builder.select(inside, value, _splat(builder, other))


_address, _number, _count = types.int64, types.float32, types.int64

load = _vector_operation(vector, (_address,), _load)
load_halves = _vector_operation(vector, (_address,), _load_halves)
store = _vector_operation(types.void, (_address, vector), _store)
store_halves = _vector_operation(types.void, (_address, vector), _store_halves)
splat = _vector_operation(vector, (_number,), _splat)
add = _vector_operation(vector, (vector, vector), lambda builder, a, b: builder.fadd(a, b))
subtract = _vector_operation(vector, (vector, vector), lambda builder, a, b: builder.fsub(a, b))
multiply = _vector_operation(vector, (vector, vector), lambda builder, a, b: builder.fmul(a, b))
fused = _vector_operation(vector, (vector, vector, vector), _fused)
larger = _vector_operation(vector, (vector, vector), _larger)
exponential = _vector_operation(vector, (vector,), _exponential)
gated = _vector_operation(vector, (vector, vector), _gated)
between = _vector_operation(vector, (vector, _count, _count, _number), _between)
sum_of = _vector_operation(types.float32, (vector,), lambda b, v: _tree(b, v, lambda x, y: b.fadd(x, y)))
largest_of = _vector_operation(types.float32, (vector,), lambda b, v: _tree(b, v, lambda x, y: _larger(b, x, y)))
read_number = _vector_operation(types.float32, (_address,), lambda b, a: b.load(_at(b, a, _FLOAT), align=4))
write_number = _vector_operation(
    types.void, (_address, _number), lambda b, a, v: (b.store(v, _at(b, a, _FLOAT), align=4), None)[1]
)
read_integer = _vector_operation(types.int64, (_address,), lambda b, a: b.load(_at(b, a, _INT64), align=8))
write_half = _vector_operation(
    types.void,
    (_address, _number),
    lambda b, a, v: (
        b.store(b.trunc(_rounded(b, b.bitcast(v, _INT32), v), _INT16), _at(b, a, _INT16), align=2),
        None,
    )[1],
)
pointer = _vector_operation(types.voidptr, (_address,), lambda b, a: b.inttoptr(a, ir.IntType(8).as_pointer()))


def _paired_step(builder: Any, total: Any, weights: Any, inputs: Any) -> Any:
    """Add the products of a step: of two bfloat16 in each lane's 32 bits."""
    if PAIRED_BY == "dpbf16ps":
        pairs = ir.VectorType(_Brain(), 2 * LANES)
        products = _function(builder, "llvm.x86.avx512bf16.dpbf16ps.512", _FLOATS, [_FLOATS, pairs, pairs])
        return builder.call(products, [total, builder.bitcast(weights, pairs), builder.bitcast(inputs, pairs)])
    half, upper = ir.Constant(_INTS, [16] * LANES), ir.Constant(_INTS, [0xFFFF0000] * LANES)

    def first(both: Any) -> Any:
        return builder.bitcast(builder.shl(both, half), _FLOATS)

    def second(both: Any) -> Any:
        return builder.bitcast(builder.and_(both, upper), _FLOATS)

    total = _fused(builder, first(weights), first(inputs), total)
    return _fused(builder, second(weights), second(inputs), total)


def _float_step(builder: Any, total: Any, weights: Any, inputs: Any) -> Any:
    return _fused(builder, builder.bitcast(weights, _FLOATS), builder.bitcast(inputs, _FLOATS), total)


def _products(columns: int, step: Code) -> Any:
    """Tiles of sixteen times ``columns`` outputs, and of as many rows of inputs as it is called with, `TILE_ROWS` at most."""

    @intrinsic
    def products(  # type: ignore[no-untyped-def]
        context,
        rows,
        inputs,
        row_bytes,
        weights,
        column_bytes,
        steps,
        table,
        blocks,
        block_bytes,
        outputs,
        output_bytes,
    ):
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            count, *rest = values
            tiles = [builder.function.append_basic_block(f"rows_{rows}") for rows in range(1, TILE_ROWS + 1)]
            done = builder.function.append_basic_block("written")
            choice = builder.switch(count, done)
            for rows, tile in enumerate(tiles, 1):
                choice.add_case(ir.Constant(_INT64, rows), tile)
                builder.position_at_end(tile)
                _tile(builder, rows, columns, step, *rest)
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 11), code

    return products


def _tile(
    builder: Any,
    rows: int,
    columns: int,
    step: Code,
    inputs: Any,
    row_bytes: Any,
    weights: Any,
    column_bytes: Any,
    steps: Any,
    table: Any,
    blocks: Any,
    block_bytes: Any,
    outputs: Any,
    output_bytes: Any,
) -> None:
    """Sums of products, each one chain: over the blocks of which ``table`` has the places, and over the ``steps`` of each."""
    entry = builder.block
    outer, inner, after, done = (
        builder.function.append_basic_block(name) for name in ("block", "step", "next", "sums")
    )

    def constant(number: int) -> Any:
        return ir.Constant(_INT64, number)

    def offset(base: Any, count: Any, size: Any) -> Any:
        return builder.add(base, builder.mul(count, size))

    def carried(start: Any, block: Any) -> Any:
        phi = builder.phi(start.type)
        phi.add_incoming(start, block)
        return phi

    tile = [(row, column) for row in range(rows) for column in range(columns)]
    builder.branch(outer)

    builder.position_at_end(outer)
    block = carried(constant(0), entry)
    read = carried(inputs, entry)
    sums = {place: carried(_numbers(0.0), entry) for place in tile}
    start = offset(weights, builder.load(_at(builder, offset(table, block, constant(8)), _INT64), align=8), block_bytes)
    builder.branch(inner)

    builder.position_at_end(inner)
    at = carried(constant(0), outer)
    running = {place: carried(total, outer) for place, total in sums.items()}
    weight_at, input_at = builder.mul(at, constant(_STEP_BYTES)), builder.mul(at, constant(_INPUT_BYTES))
    lanes = [
        builder.load(
            _at(builder, builder.add(offset(start, constant(column), column_bytes), weight_at), _INTS), align=64
        )
        for column in range(columns)
    ]
    given = [
        _splat(
            builder,
            builder.load(_at(builder, builder.add(offset(read, constant(row), row_bytes), input_at), _INT32), align=4),
        )
        for row in range(rows)
    ]
    totals = {(row, column): step(builder, running[row, column], lanes[column], given[row]) for row, column in tile}
    following = builder.add(at, constant(1))
    at.add_incoming(following, inner)
    for place in tile:
        running[place].add_incoming(totals[place], inner)
    builder.cbranch(builder.icmp_signed("<", following, steps), inner, after)

    builder.position_at_end(after)
    next_block = builder.add(block, constant(1))
    block.add_incoming(next_block, after)
    read.add_incoming(offset(read, steps, constant(_INPUT_BYTES)), after)
    for place in tile:
        sums[place].add_incoming(totals[place], after)
    builder.cbranch(builder.icmp_signed("<", next_block, blocks), outer, done)

    builder.position_at_end(done)
    for row, column in tile:
        to = offset(offset(outputs, constant(row), output_bytes), constant(column), constant(4 * LANES))
        builder.store(totals[row, column], _at(builder, to, _FLOATS), align=4)


_paired_pair, _float_pair = _products(2, _paired_step), _products(2, _float_step)
_paired_one, _float_one = _products(1, _paired_step), _products(1, _float_step)


@compiled
def _tile_of_two(
    paired: int,
    rows: int,
    inputs: int,
    row_bytes: int,
    weights: int,
    column_bytes: int,
    steps: int,
    table: int,
    blocks: int,
    block_bytes: int,
    outputs: int,
    output_bytes: int,
) -> None:
    """Thirty-two outputs of up to `TILE_ROWS` rows."""
    if paired:
        _paired_pair(
            rows, inputs, row_bytes, weights, column_bytes, steps, table, blocks, block_bytes, outputs, output_bytes
        )
    else:
        _float_pair(
            rows, inputs, row_bytes, weights, column_bytes, steps, table, blocks, block_bytes, outputs, output_bytes
        )


@compiled
def _scores_of_block(
    paired: int,
    rows: int,
    inputs: int,
    row_bytes: int,
    keys: int,
    steps: int,
    table: int,
    block_bytes: int,
    outputs: int,
    output_bytes: int,
) -> None:
    """What up to `TILE_ROWS` queries say of the keys of one block."""
    if paired:
        _paired_one(rows, inputs, row_bytes, keys, 0, steps, table, 1, block_bytes, outputs, output_bytes)
    else:
        _float_one(rows, inputs, row_bytes, keys, 0, steps, table, 1, block_bytes, outputs, output_bytes)


# The team. Without OpenMP's library there is one thread, which waits for nobody.


def _openmp() -> Any:
    """The library that torch computes with, so that there is one team; None if it has another."""
    home = Path(torch.__file__).parent
    for path in (*home.glob("lib/libgomp*"), *home.with_name("torch.libs").glob("libgomp*"), "libgomp.so.1"):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None


_OPENMP = _openmp()
_alone = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)


def _named(name: str, symbol: str, result: Any) -> Any:
    """One of its functions, for compiled code."""
    function = _alone if _OPENMP is None else getattr(_OPENMP, symbol)
    llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return types.ExternalFunction(name, result())


_wait_for_all = _named("slipstream_wait_for_all", "GOMP_barrier", types.void)
_thread_number = _named("slipstream_thread_number", "omp_get_thread_num", types.int32)
_thread_count = _named("slipstream_thread_count", "omp_get_num_threads", types.int32)

# The phases of a forward. Each thread computes its share of every one.

_STORED, _ADDED, _GATED = 0, 1, 2
"""What becomes of a product: it is stored, added to what is there, or is a gate and what goes through it."""


@compiled
def _width(step: Any) -> int:
    """Bytes of a number that goes into products."""
    return 2 if step.paired else 4


@compiled
def _put(address: int, at: int, paired: int, value: Any) -> None:
    """Sixteen numbers from place ``at`` on, as what goes into products."""
    if paired:
        store_halves(address + 2 * at, value)
    else:
        store(address + 4 * at, value)


@compiled
def _embed(step: Any, row: int) -> None:
    """A token's embedding, and how far its position turns."""
    size, width = step.hidden_size, _width(step)
    source = step.embedding + read_integer(step.ids + 8 * row) * size * width
    to = step.residual + row * size * 4
    for at in range(0, size, LANES):
        store(to + 4 * at, load_halves(source + 2 * at) if step.paired else load(source + 4 * at))
    half = step.head_size // 2
    turns = step.rotations + row * step.head_size * 4
    position = np.float32(read_integer(step.positions + 8 * row))
    for at in range(half):
        angle = np.float64(np.float32(position * read_number(step.frequencies + 4 * at)))
        write_number(turns + 4 * at, np.float32(math.cos(angle) * step.rotation_scale))
        write_number(turns + 4 * (half + at), np.float32(math.sin(angle) * step.rotation_scale))


@compiled
def _inverse_norm(source: int, size: int, epsilon: float) -> np.float32:
    """One over the root of the mean square."""
    total = splat(np.float32(0.0))
    for at in range(0, size, LANES):
        value = load(source + 4 * at)
        total = fused(value, value, total)
    return np.float32(1.0 / math.sqrt(np.float64(sum_of(total)) / size + epsilon))


@compiled
def _normalize(step: Any, row: int, weight: int, to_row: int) -> None:
    """A row's residual, normalised, as inputs of row ``to_row``."""
    size = step.hidden_size
    source = step.residual + row * size * 4
    factor = splat(_inverse_norm(source, size, step.epsilon))
    to = step.inputs + to_row * size * _width(step)
    for at in range(0, size, LANES):
        _put(to, at, step.paired, multiply(multiply(load(source + 4 * at), factor), load(weight + 4 * at)))


@compiled
def _multiply(
    step: Any,
    thread: int,
    threads: int,
    scratch: int,
    inputs: int,
    input_size: int,
    rows: int,
    weights: int,
    bias: int,
    tiles: int,
    kind: int,
    outputs: int,
    output_bytes: int,
) -> None:
    """A thread's columns of a product; ``kind`` says what becomes of it."""
    paired = step.paired
    steps = input_size // 2 if paired else input_size
    column_bytes = steps * 64
    for tile in range(tiles * thread // threads, tiles * (thread + 1) // threads):
        at = weights + tile * 2 * column_bytes
        for row in range(0, rows, TILE_ROWS):
            _tile_of_two(
                paired,
                min(TILE_ROWS, rows - row),
                inputs + row * steps * 4,
                steps * 4,
                at,
                column_bytes,
                steps,
                step.origin,
                1,
                0,
                scratch + row * 128,
                128,
            )
        for row in range(rows):
            first, second = load(scratch + row * 128), load(scratch + row * 128 + 64)
            if bias:
                first, second = add(first, load(bias + tile * 128)), add(second, load(bias + tile * 128 + 64))
            if kind == _GATED:
                _put(outputs + row * output_bytes, tile * LANES, paired, gated(first, second))
            else:
                to = outputs + row * output_bytes + tile * 128
                if kind == _ADDED:
                    first, second = add(load(to), first), add(load(to + 64), second)
                store(to, first)
                store(to + 64, second)


@compiled
def _turn(step: Any, row: int, source: int, norm: int, to: int) -> None:
    """A head's query or key ``[head size]``, normalised if the model does that, turned by its position: as float32."""
    size, half = step.head_size, step.head_size // 2
    turns = step.rotations + row * size * 4
    factor = splat(_inverse_norm(source, size, step.epsilon) if norm else np.float32(1.0))
    for at in range(0, half, LANES):
        first, second = load(source + 4 * at), load(source + 4 * (half + at))
        if norm:
            first = multiply(multiply(first, factor), load(norm + 4 * at))
            second = multiply(multiply(second, factor), load(norm + 4 * (half + at)))
        cosine, sine = load(turns + 4 * at), load(turns + 4 * (half + at))
        store(to + 4 * at, subtract(multiply(first, cosine), multiply(second, sine)))
        store(to + 4 * (half + at), add(multiply(second, cosine), multiply(first, sine)))


@compiled
def _keep(step: Any, layer: Any, row: int, head: int, key: int, value: int) -> None:
    """Write a token's key and value of a head ``[head size]`` to their slot: `the module` says how they lie."""
    size, paired = step.head_size, step.paired
    slot = read_integer(step.slots + 8 * row)
    block, lane = slot // LANES, slot % LANES
    offset = (block * step.kv_head_count + head) * size * LANES * _width(step)
    keys, values = layer.keys + offset, layer.values + offset
    for at in range(size):
        column, output = at // LANES, at % LANES
        if paired:
            write_half(keys + (at // 2 * LANES + lane) * 4 + at % 2 * 2, read_number(key + 4 * at))
            write_half(
                values + column * 512 + (lane // 2 * LANES + output) * 4 + lane % 2 * 2, read_number(value + 4 * at)
            )
        else:
            write_number(keys + (at * LANES + lane) * 4, read_number(key + 4 * at))
            write_number(values + column * 1024 + (lane * LANES + output) * 4, read_number(value + 4 * at))


@compiled
def _place(step: Any, layer: Any, row: int, scratch: int) -> None:
    """Turn a row's queries and keys, and keep its keys and values. Queries that share a key lie together."""
    size, paired = step.head_size, step.paired
    shared = step.head_count // step.kv_head_count
    head_bytes = size * 4
    source = step.projected + row * (step.head_count + 2 * step.kv_head_count) * head_bytes
    for head in range(step.head_count):
        _turn(step, row, source + head * head_bytes, layer.query_norm, scratch)
        index = (head // shared * step.row_count + row) * shared + head % shared
        to = step.queries + index * size * _width(step)
        for at in range(0, size, LANES):
            _put(to, at, paired, load(scratch + 4 * at))
    for head in range(step.kv_head_count):
        key = source + (step.head_count + head) * head_bytes
        _turn(step, row, key, layer.key_norm, scratch)
        _keep(step, layer, row, head, scratch, key + step.kv_head_count * head_bytes)


@compiled
def _weigh(step: Any, scores: int, weights: int, start: int, end: int, first_block: int, end_block: int) -> np.float32:
    """A query's scores to the weights of the keys from ``start`` to before ``end``, not yet divided by their sum, which is
    returned; other keys of the blocks get none."""
    least = np.float32(-np.inf)
    top = splat(least)
    for block in range(first_block, end_block):
        first = block * LANES
        seen = between(load(scores + 4 * first), start - first, end - first, least)
        store(scores + 4 * first, seen)
        top = larger(top, seen)
    highest, scale = splat(largest_of(top)), splat(np.float32(step.attention_scale))
    total = splat(np.float32(0.0))
    for block in range(first_block, end_block):
        weight = exponential(multiply(subtract(load(scores + 4 * block * LANES), highest), scale))
        _put(weights, block * LANES, step.paired, weight)
        total = add(total, weight)
    return sum_of(total)


@compiled
def _attend(
    step: Any, layer: Any, table: int, first_row: int, head: int, first_query: int, queries: int, scratch: int
) -> None:
    """What up to `TILE_ROWS` queries of a key head see: ``first_query`` is counted from those of the part's first row."""
    size, width, paired, shared = step.head_size, _width(step), step.paired, step.head_count // step.kv_head_count
    scores = scratch
    weights = scores + TILE_ROWS * step.longest * 4
    outputs = weights + TILE_ROWS * step.longest * 4
    end = read_integer(step.positions + 8 * (first_row + (first_query + queries - 1) // shared)) + 1
    start = 0
    if layer.window:
        start = max(0, read_integer(step.positions + 8 * (first_row + first_query // shared)) + 1 - layer.window)
    first_block, end_block = start // LANES, (end + LANES - 1) // LANES
    head_bytes = size * LANES * width
    block_bytes = step.kv_head_count * head_bytes
    asked = step.queries + ((head * step.row_count + first_row) * shared + first_query) * size * width
    for block in range(first_block, end_block):
        _scores_of_block(
            paired,
            queries,
            asked,
            size * width,
            layer.keys + head * head_bytes,
            size * width // 4,
            table + 8 * block,
            block_bytes,
            scores + 4 * block * LANES,
            step.longest * 4,
        )
    for query in range(queries):
        position = read_integer(step.positions + 8 * (first_row + (first_query + query) // shared))
        begin = max(0, position + 1 - layer.window) if layer.window else 0
        total = _weigh(
            step,
            scores + query * step.longest * 4,
            weights + query * step.longest * width,
            begin,
            position + 1,
            first_block,
            end_block,
        )
        write_number(outputs + TILE_ROWS * size * 4 + 4 * query, np.float32(1.0) / total)
    column_bytes = LANES * LANES * width
    for column in range(0, size // LANES, 2):
        _tile_of_two(
            paired,
            queries,
            weights + first_block * LANES * width,
            step.longest * width,
            layer.values + head * head_bytes + column * column_bytes,
            column_bytes,
            LANES * width // 4,
            table + 8 * first_block,
            end_block - first_block,
            block_bytes,
            outputs + column * 64,
            size * 4,
        )
    for query in range(queries):
        row, query_head = first_row + (first_query + query) // shared, head * shared + (first_query + query) % shared
        share = splat(read_number(outputs + TILE_ROWS * size * 4 + 4 * query))
        to = step.inputs + (row * step.head_count + query_head) * size * width
        for at in range(0, size, LANES):
            _put(to, at, paired, multiply(load(outputs + (query * size + at) * 4), share))


@compiled
def _attend_all(step: Any, layer: Any, thread: int, threads: int, scratch: int) -> None:
    """A thread's heads and parts, dealt out in turn: later parts see more keys."""
    shared = step.head_count // step.kv_head_count
    for index in range(thread, step.part_count * step.kv_head_count, threads):
        part, head = index // step.kv_head_count, index % step.kv_head_count
        first_row, rows = read_integer(step.part_rows + 8 * part), read_integer(step.part_counts + 8 * part)
        table = read_integer(step.part_tables + 8 * part)
        for first in range(0, rows * shared, TILE_ROWS):
            _attend(step, layer, table, first_row, head, first, min(TILE_ROWS, rows * shared - first), scratch)


@compiled
def _run(step: Any, layers: Any) -> None:
    thread, threads = np.int64(_thread_number()), np.int64(_thread_count())
    scratch = step.scratch + thread * step.scratch_bytes
    rows, hidden = step.row_count, step.hidden_size
    own_rows = range(rows * thread // threads, rows * (thread + 1) // threads)
    attended = step.head_count * step.head_size
    projected = attended + 2 * step.kv_head_count * step.head_size
    for row in own_rows:
        _embed(step, row)
    for index in range(step.layer_count):
        layer = layers[index]
        for row in own_rows:
            _normalize(step, row, layer.attention_norm, row)
        _wait(threads)
        _multiply(
            step,
            thread,
            threads,
            scratch,
            step.inputs,
            hidden,
            rows,
            layer.projection,
            layer.projection_bias,
            projected // TILE_COLUMNS,
            _STORED,
            step.projected,
            projected * 4,
        )
        _wait(threads)
        for row in own_rows:
            _place(step, layer, row, scratch)
        _wait(threads)
        _attend_all(step, layer, thread, threads, scratch)
        _wait(threads)
        _multiply(
            step,
            thread,
            threads,
            scratch,
            step.inputs,
            attended,
            rows,
            layer.output,
            layer.output_bias,
            hidden // TILE_COLUMNS,
            _ADDED,
            step.residual,
            hidden * 4,
        )
        _wait(threads)
        for row in own_rows:
            _normalize(step, row, layer.feed_norm, row)
        _wait(threads)
        _multiply(
            step,
            thread,
            threads,
            scratch,
            step.inputs,
            hidden,
            rows,
            layer.gate_up,
            layer.gate_up_bias,
            step.feed_forward // LANES,
            _GATED,
            step.gated,
            step.feed_forward * _width(step),
        )
        _wait(threads)
        _multiply(
            step,
            thread,
            threads,
            scratch,
            step.gated,
            step.feed_forward,
            rows,
            layer.down,
            layer.down_bias,
            hidden // TILE_COLUMNS,
            _ADDED,
            step.residual,
            hidden * 4,
        )
        _wait(threads)
    wanted = step.wanted_count
    for index in range(wanted * thread // threads, wanted * (thread + 1) // threads):
        _normalize(step, read_integer(step.wanted + 8 * index), step.final_norm, index)
    _wait(threads)
    _multiply(
        step,
        thread,
        threads,
        scratch,
        step.inputs,
        hidden,
        wanted,
        step.head,
        0,
        step.vocabulary_columns // TILE_COLUMNS,
        _STORED,
        step.logits,
        step.vocabulary_columns * 4,
    )


@compiled
def _wait(threads: int) -> None:
    if threads > 1:
        _wait_for_all()


def _forward(step: Any) -> None:
    described = carray(step, (1,), STEP)[0]
    _run(described, carray(pointer(described.layers), (described.layer_count,), LAYER))


@functools.cache
def _entry() -> Any:
    """`_forward` as something that OpenMP may call. Compiling it for the first time on a machine takes a while."""
    signature = types.void(types.voidptr)
    try:
        return numba.cfunc(signature, nopython=True, cache=True)(_forward)
    except RuntimeError:
        return numba.cfunc(signature, nopython=True)(_forward)


def forward(step: np.ndarray, threads: int) -> None:
    """One forward, as ``step`` says, by so many threads."""
    entry, place = _entry(), step.ctypes.data
    if _OPENMP is None or threads == 1:
        entry.ctypes(place)
    else:
        _OPENMP.GOMP_parallel(ctypes.c_void_p(entry.address), ctypes.c_void_p(place), threads, 0)
