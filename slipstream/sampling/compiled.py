"""How the inner loops of sampling are compiled, and the operations on bits that they need and Python has no word for.

Numba compiles a function when it is first called, in seconds, and keeps the result beside the source or in the user's cache
folder. Sums keep their order and products are not fused into them (no fast-math), so that a loop's bits are the same on every
processor. Compiled code lets go of Python's lock: who waits on the event loop does not wait for a choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """A function compiled to machine code, once for each combination of argument types."""
    try:
        return cast(Function, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # there is no folder to keep it in: compiled anew by each process then
        return cast(Function, numba.njit(nogil=True)(function))


def _multiply_high(context: Any, first: Any, second: Any) -> tuple[Any, Any]:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), code


def _bits(context: Any, stored: Any) -> tuple[Any, Any]:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if stored == types.int32:
            return arguments[0]
        return builder.shl(builder.sext(arguments[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))

    return types.int32(stored), code


def _float(context: Any, bits: Any) -> tuple[Any, Any]:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), code


multiply_high = intrinsic(_multiply_high)
"""The upper 64 bits of the product of two uint64."""

bits_of = intrinsic(_bits)
"""The bits of a float32 as int32, from these or from a bfloat16's as int16, which are the upper half of them."""

float_of = intrinsic(_float)
"""The float32 of which an int32 has the bits."""
