"""Compiled functions: their operations on bits, that sums are not rearranged, and a machine without
a place to keep them."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import cast

import numba
import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from slipstream.sampling import kernel
from slipstream.sampling.kernel import Function, bits_of, compiled, float_of, multiply_high


def uncached(function: Function) -> Function:
    """What is compiled into these of the kernel's must be the kernel's of now."""
    return cast(Function, numba.njit(nogil=True)(function))


@uncached
def high(first: np.uint64, second: np.uint64) -> np.uint64:
    return np.uint64(multiply_high(first, second))


@uncached
def bits(stored: np.int16 | np.int32) -> np.int32:
    return np.int32(bits_of(stored))


@uncached
def number(stored: np.int16 | np.int32) -> np.float32:
    return np.float32(float_of(bits_of(stored)))


@compiled
def multiplied_and_added(first: float, second: float, third: float) -> float:
    return first * second + third


@pytest.mark.parametrize("first", [0, 3, 2**63, 2**64 - 1])
@pytest.mark.parametrize("second", [1, 0xD2E7470EE14C6C93, 2**64 - 1])
def test_the_upper_half_of_a_product(first: int, second: int) -> None:
    assert high(np.uint64(first), np.uint64(second)) == first * second >> 64


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, 2.0**-126])
def test_a_bfloat16_is_the_upper_half_of_a_float32(value: float) -> None:
    single = struct.unpack("i", struct.pack("f", value))[0]
    half = np.int16(single >> 16)
    assert bits(np.int32(single)) == bits(half) == single
    for stored in (np.int32(single), half):
        got = float(number(stored))
        assert (got, math.copysign(1, got)) == (value, math.copysign(1, value))


def test_a_product_is_rounded_before_it_is_added_to() -> None:
    """A processor that can do both at once would round once, and its texts would differ from
    another's."""
    almost = 1 + 2.0**-30
    assert multiplied_and_added(almost, almost, -(1 + 2.0**-29)) == 0.0


def test_all_that_is_compiled_is_one_file_that_imports_nothing_of_ours() -> None:
    """What is kept of it is taken for current as long as that file is."""
    dispatchers = [each for each in vars(kernel).values() if isinstance(each, Dispatcher)]
    assert len(dispatchers) > 10
    assert {Path(each.py_func.__code__.co_filename) for each in dispatchers} == {Path(kernel.__file__)}
    assert "slipstream" not in "".join(
        line for line in Path(kernel.__file__).read_text().splitlines() if "import" in line.split()
    )
    assert not any(
        "@compiled" in path.read_text()
        for path in Path(kernel.__file__).parent.glob("*.py")
        if path.name != "kernel.py"
    )


def test_without_a_folder_to_keep_it_a_function_is_compiled_all_the_same() -> None:
    names: dict[str, object] = {}
    exec(compile("def doubled(value):\n    return value * 2", "<nowhere>", "exec"), names)
    doubled = names["doubled"]
    assert callable(doubled) and compiled(doubled)(21) == 42
