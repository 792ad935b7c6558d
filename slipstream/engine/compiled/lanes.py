"""Sixteen float32 numbers as one value, for compiled code: what Numba lacks to say which lanes are
computed together.

Every operation is a few instructions of LLVM's, the same on every processor: nothing is left to a
compiler that might take sums apart one way here and another way there. Products are joined to sums
in one rounding (fused) where it is said, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

LANES = 16

FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)
HALVES = ir.VectorType(ir.HalfType(), LANES)
_INT16 = ir.IntType(16)
_BYTES = ir.VectorType(ir.IntType(8), LANES)
_SHORTS = ir.VectorType(_INT16, LANES)

Code = Callable[..., Any]
Function = TypeVar("Function", bound=Code)


def compiled(function: Function) -> Function:
    """Mark a function for compiled code alone. It has no wrappers, so that it compiles faster, and
    a call from Python would crash. The whole that it becomes part of is kept on disk
    (`forward`)."""
    return cast(
        Function,
        numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function),
    )


class _Vector(types.Type):  # type: ignore[misc] # Numba is untyped
    def __init__(self) -> None:
        super().__init__(name="sixteen_float32")


class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


register_model(_Vector)(_VectorModel)
_vector, _address, _number, _count = _Vector(), types.int64, types.float32, types.int64


def operation(result: Any, arguments: tuple[Any, ...], build: Code) -> Any:
    """Return an operation that compiled code may call. ``build`` is given LLVM's builder and as
    many values as there are ``arguments``."""

    def typed(*_: Any) -> tuple[Any, Code]:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            made = build(builder, *values)
            return context.get_dummy_value() if result is types.void else made

        return result(*arguments), code

    by_arity: dict[int, Code] = {  # Numba counts a function's arguments
        0: lambda context: typed(),
        1: lambda context, a: typed(),
        2: lambda context, a, b: typed(),
        3: lambda context, a, b, c: typed(),
    }
    return intrinsic(by_arity[len(arguments)])


def spread(builder: Any, scalar: Any) -> Any:
    """A scalar in every lane."""
    of = ir.VectorType(scalar.type, LANES)
    alone = builder.insert_element(ir.Constant(of, ir.Undefined), scalar, ir.Constant(INT32, 0))
    return builder.shuffle_vector(alone, ir.Constant(of, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def numbers(value: float) -> Any:
    """A constant in every lane."""
    return ir.Constant(FLOATS, [value] * LANES)


def integers(value: int) -> Any:
    """A constant in every lane."""
    return ir.Constant(INTS, [value] * LANES)


def at(builder: Any, address: Any, of: Any) -> Any:
    """An address as a pointer."""
    return builder.inttoptr(address, of.as_pointer())


def llvm_function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """An intrinsic function of LLVM's."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def fuse(builder: Any, first: Any, second: Any, third: Any) -> Any:
    """first * second + third, rounded once."""
    return builder.call(llvm_function(builder, "llvm.fma.v16f32", FLOATS, [FLOATS] * 3), [first, second, third])


def _load_halves(builder: Any, address: Any) -> Any:
    halves = builder.load(at(builder, address, _SHORTS), align=2)
    return builder.bitcast(builder.shl(builder.zext(halves, INTS), integers(16)), FLOATS)


def _rounded(builder: Any, bits: Any, value: Any) -> Any:
    """Upper halves of float32 bits, rounded to the nearest, ties to even; what is no number stays
    none."""

    def constant(number: int) -> Any:
        return integers(number) if bits.type == INTS else ir.Constant(INT32, number)

    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, constant(0x7FFF))), constant(16))
    return builder.select(builder.fcmp_unordered("uno", value, value), constant(0x7FC0), rounded)


def _store_halves(builder: Any, address: Any, value: Any) -> None:
    halves = _rounded(builder, builder.bitcast(value, INTS), value)
    builder.store(builder.trunc(halves, _SHORTS), at(builder, address, _SHORTS), align=2)


def _rounded_to_half(builder: Any, value: Any) -> Any:
    upper = _rounded(builder, builder.bitcast(value, INTS), value)
    return builder.bitcast(builder.shl(upper, integers(16)), FLOATS)


def _write_half(builder: Any, address: Any, value: Any) -> None:
    half = _rounded(builder, builder.bitcast(value, INT32), value)
    builder.store(builder.trunc(half, _INT16), at(builder, address, _INT16), align=2)


def _tree(builder: Any, value: Any, join: Code) -> Any:
    """All lanes joined, halves with halves."""
    width = LANES
    while width > 1:
        width //= 2
        halves = [
            builder.shuffle_vector(
                value,
                ir.Constant(value.type, ir.Undefined),
                ir.Constant(ir.VectorType(INT32, width), list(range(start, start + width))),
            )
            for start in (0, width)
        ]
        value = join(builder, *halves)
    return builder.extract_element(value, ir.Constant(INT32, 0))


def _sum(builder: Any, first: Any, second: Any) -> Any:
    return builder.fadd(first, second)


def _larger(builder: Any, first: Any, second: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", first, second), first, second)


def _exponential(builder: Any, exponent: Any) -> Any:
    """Compute exp as Cephes' expf does (Moshier 1989): a power of two and a polynomial, to two
    units in the last place."""
    kept = _larger(builder, exponent, numbers(-87.0))
    shift = numbers(1.5 * 2**23)  # added and taken off again it leaves a whole number
    power = builder.fsub(fuse(builder, kept, numbers(1.44269504088896341), shift), shift)
    rest = fuse(builder, power, numbers(-0.693359375), kept)
    rest = fuse(builder, power, numbers(2.12194440e-4), rest)
    value = numbers(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        value = fuse(builder, value, rest, numbers(factor))
    value = builder.fadd(fuse(builder, builder.fmul(rest, rest), value, rest), numbers(1.0))
    scale = builder.shl(builder.add(builder.fptosi(power, INTS), integers(127)), integers(23))
    value = builder.fmul(value, builder.bitcast(scale, FLOATS))
    value = builder.select(builder.fcmp_ordered(">=", exponent, numbers(-87.0)), value, numbers(0.0))
    return builder.select(builder.fcmp_unordered("uno", exponent, exponent), exponent, value)


def _gated(builder: Any, gate: Any, up: Any) -> Any:
    negative = builder.fsub(numbers(0.0), gate)
    bounded = builder.select(builder.fcmp_ordered(">", negative, numbers(88.0)), numbers(88.0), negative)
    silu = builder.fdiv(gate, builder.fadd(numbers(1.0), _exponential(builder, bounded)))
    return builder.fmul(silu, up)


def _between(builder: Any, value: Any, first: Any, end: Any, other: Any) -> Any:
    lanes = ir.Constant(INTS, list(range(LANES)))
    start, stop = (spread(builder, builder.trunc(bound, INT32)) for bound in (first, end))
    inside = builder.and_(builder.icmp_signed(">=", lanes, start), builder.icmp_signed("<", lanes, stop))
    return builder.select(inside, value, spread(builder, other))


load = operation(_vector, (_address,), lambda b, address: b.load(at(b, address, FLOATS), align=4))
"""Sixteen float32 from an address on."""

load_halves = operation(_vector, (_address,), _load_halves)
"""Sixteen bfloat16 from an address on."""

store = operation(types.void, (_address, _vector), lambda b, address, v: b.store(v, at(b, address, FLOATS), align=4))
store_halves = operation(types.void, (_address, _vector), _store_halves)
"""Store numbers as bfloat16, rounded to the nearest."""

rounded_to_half = operation(_vector, (_vector,), _rounded_to_half)
"""Round numbers as `store_halves`, and then `load_halves`, would."""

splat = operation(_vector, (_number,), spread)
add = operation(_vector, (_vector, _vector), _sum)
subtract = operation(_vector, (_vector, _vector), lambda b, first, second: b.fsub(first, second))
multiply = operation(_vector, (_vector, _vector), lambda b, first, second: b.fmul(first, second))
fused = operation(_vector, (_vector, _vector, _vector), fuse)
larger = operation(_vector, (_vector, _vector), _larger)
exponential = operation(_vector, (_vector,), _exponential)
"""Exp of numbers of at most 88; below -87 it is 0."""

gated = operation(_vector, (_vector, _vector), _gated)
"""silu(first) * second, where silu(x) is x / (1 + exp(-x))."""

sum_of = operation(types.float32, (_vector,), lambda b, value: _tree(b, value, _sum))
largest_of = operation(types.float32, (_vector,), lambda b, value: _tree(b, value, _larger))


def _store_bytes(builder: Any, address: Any, value: Any) -> None:
    whole = builder.trunc(builder.fptosi(value, INTS), _BYTES)
    builder.store(whole, at(builder, address, _BYTES), align=4)


def _load_float16(builder: Any, address: Any) -> Any:
    return builder.fpext(builder.load(at(builder, address, HALVES), align=2), FLOATS)


def _rounded_to_whole(builder: Any, value: Any) -> Any:
    shift = numbers(1.5 * 2**23)  # added and taken off again it leaves a whole number
    return builder.fsub(builder.fadd(value, shift), shift)


load_float16 = operation(_vector, (_address,), _load_float16)
"""Sixteen float16 from an address on."""

store_bytes = operation(types.void, (_address, _vector), _store_bytes)
"""Whole numbers from -128 to 127 as int8."""

absolute = operation(_vector, (_vector,), lambda b, value: _larger(b, value, b.fsub(numbers(0.0), value)))
rounded = operation(_vector, (_vector,), _rounded_to_whole)
"""To the nearest whole number, ties to even; of numbers below 4,000,000."""

write_integer = operation(
    types.void,
    (_address, _count),
    lambda b, address, value: b.store(b.trunc(value, INT32), at(b, address, INT32), align=4),
)
"""Store a number as int32."""

read_number = operation(types.float32, (_address,), lambda b, address: b.load(at(b, address, FLOAT), align=4))
read_integer = operation(types.int64, (_address,), lambda b, address: b.load(at(b, address, INT64), align=8))
write_number = operation(
    types.void, (_address, _number), lambda b, address, value: b.store(value, at(b, address, FLOAT), align=4)
)
write_half = operation(types.void, (_address, _number), _write_half)
pointer = operation(types.voidptr, (_address,), lambda b, address: at(b, address, ir.IntType(8)))
"""An address as what `numba.carray` takes."""


@intrinsic  # type: ignore[untyped-decorator] # Numba is untyped
def between(context: Any, value: Any, first: Any, end: Any, other: Any) -> tuple[Any, Code]:
    """The lanes from ``first`` to before ``end`` as in ``value``, the rest as ``other``."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _between(builder, *values)

    return _vector(_vector, _count, _count, _number), code
