"""Sums of products of bytes: weights' without a sign, inputs' from -127 to 127. They are whole
numbers, so that every processor gives the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from slipstream.engine.compiled.block_types import STEP_INPUTS
from slipstream.engine.compiled.lanes import INT32, INTS, LANES, integers, llvm_function
from slipstream.engine.compiled.processor import HAS_BYTE_DOTS, HAS_WORD_DOTS

_BYTE, _WORD = ir.IntType(8), ir.IntType(16)
_BYTES, _WORDS = ir.VectorType(_BYTE, 4 * LANES), ir.VectorType(_WORD, 2 * LANES)
_HALF_BYTES, _HALF_WORDS = ir.VectorType(_BYTE, 2 * LANES), ir.VectorType(_WORD, LANES)
_HALF_INTS = ir.VectorType(INT32, LANES // 2)
_LARGEST_INPUT, _LARGEST_WORD = 127, 2**15 - 1


class Dots:
    """Sixteen sums for each place of a tile, by steps of four products in each lane."""

    def __init__(self, builder: Any, bits: int, starts: Mapping[Any, Any]) -> None:
        """Weights have so many ``bits``. ``starts`` are what sums begin with, by their places."""
        self._builder = builder
        self._sums = dict(starts)
        self._words: dict[Any, Any] = {}
        self._pending = 0
        # Two products of a few bits, and some steps of them, do not overflow 16.
        self._most_pending = _LARGEST_WORD // (2 * (2**bits - 1) * _LARGEST_INPUT)

    def add_step(self, weights: Mapping[Any, Any], inputs: Mapping[Any, Any]) -> None:
        """Add a step: weights' 32 bits in each lane by columns, inputs' by rows."""
        in_words = HAS_WORD_DOTS and not HAS_BYTE_DOTS and self._most_pending > 0
        for row, column in self._sums:
            place, each = (row, column), (weights[column], inputs[row])
            if in_words:
                self._add_words(place, *each)
            else:
                self._sums[place] = dot(self._builder, self._sums[place], *each)
        if in_words:
            self._pending += 1
            if self._pending == self._most_pending:
                self._widen()

    def totals(self) -> dict[Any, Any]:
        """Return the sums, by their places."""
        self._widen()
        return self._sums

    def _add_words(self, place: Any, weights: Any, inputs: Any) -> None:
        name, bytes_of = "llvm.x86.avx2.pmadd.ub.sw", self._builder.bitcast
        products = _by_halves(
            self._builder, name, _HALF_WORDS, bytes_of(weights, _BYTES), bytes_of(inputs, _BYTES), _HALF_BYTES
        )
        known = self._words.get(place)
        self._words[place] = products if known is None else self._builder.add(known, products)

    def _widen(self) -> None:
        """Add the sums in 16 bits to those in 32."""
        for place, words in self._words.items():
            self._sums[place] = self._builder.add(self._sums[place], _neighbours(self._builder, words, _every_word(1)))
        self._words, self._pending = {}, 0


def dot(builder: Any, sums: Any, weights: Any, inputs: Any) -> Any:
    """Add the four products in each lane's 32 bits."""
    if HAS_BYTE_DOTS:
        dots = llvm_function(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, [INTS] * 3)
        return builder.call(dots, [sums, weights, inputs])
    if HAS_WORD_DOTS:
        return _dot_of_words(builder, sums, weights, inputs)
    for place in range(STEP_INPUTS):
        weight = builder.and_(builder.lshr(weights, integers(8 * place)), integers(0xFF))
        value = builder.ashr(builder.shl(inputs, integers(24 - 8 * place)), integers(24))
        sums = builder.add(sums, builder.mul(weight, value))
    return sums


def _dot_of_words(builder: Any, sums: Any, weights: Any, inputs: Any) -> Any:
    """The same by products of 16-bit numbers: of a lane's first and third byte, and of its second
    and fourth."""
    eight = _every_word(8)
    weights, inputs = builder.bitcast(weights, _WORDS), builder.bitcast(inputs, _WORDS)
    first = builder.and_(weights, _every_word(0xFF)), builder.ashr(builder.shl(inputs, eight), eight)
    second = builder.lshr(weights, eight), builder.ashr(inputs, eight)
    for pair in (first, second):
        sums = builder.add(sums, _neighbours(builder, *pair))
    return sums


def _every_word(number: int) -> Any:
    return ir.Constant(_WORDS, [number] * (2 * LANES))


def _neighbours(builder: Any, weights: Any, inputs: Any) -> Any:
    """Sixteen sums of the products of two neighbours each, of 16 bits."""
    return _by_halves(builder, "llvm.x86.avx2.pmadd.wd", _HALF_INTS, weights, inputs, _HALF_WORDS)


def _by_halves(builder: Any, name: str, result: Any, first: Any, second: Any, half: Any) -> Any:
    """Return what an instruction for halves of two vectors makes of both."""
    function = llvm_function(builder, name, result, [half] * 2)
    nothing, halves = ir.Constant(first.type, ir.Undefined), []
    for start in (0, half.count):
        lanes = ir.Constant(ir.VectorType(INT32, half.count), list(range(start, start + half.count)))
        halves.append(
            builder.call(function, [builder.shuffle_vector(each, nothing, lanes) for each in (first, second)])
        )
    every = ir.Constant(ir.VectorType(INT32, 2 * result.count), list(range(2 * result.count)))
    return builder.shuffle_vector(*halves, every)
