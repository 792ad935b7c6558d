"""Frequencies of rotary positions, on every machine with the bits that torch gives them where it
has AVX-512.

A power is computed as Sleef's powf does it, which torch uses on CPUs: by a logarithm and an
exponential of two float32 numbers each (Shibata, Petrogalli, "SLEEF: A Portable Vectorized Library
of C Standard Mathematical Functions", 2020). NumPy's power differs from it in the last bit of one
number in ten.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.engine.config_numbers import is_positive, odd_position
from slipstream.sampling.kernel import Floats32

_Pair = tuple[Any, Any]
"""Numbers of twice the precision: float32 sums of both."""

_f = np.float32
_powf = ctypes.CDLL(None).powf
_powf.restype, _powf.argtypes = ctypes.c_float, (ctypes.c_float, ctypes.c_float)
_AT_A_TIME = 32
_LEAST_MANTISSA = 0.75
_LN2 = _f(0.69314718246459960938), _f(-1.904654323148236017e-09)
_LOG_FACTORS = _f(0.240320354700088500976562), _f(0.285112679004669189453125), _f(0.400007992982864379882812)
_LAST_LOG_FACTOR = _f(0.66666662693023681640625), _f(3.69183861259614332084311e-09)
_LOG2_E, _LN2_UPPER, _LN2_LOWER = _f(1.4426950408889634), _f(-0.693145751953125), _f(-1.428606765330187045e-06)
_EXP_FACTORS = tuple(
    _f(factor)
    for factor in (
        0.00136324646882712841033936,
        0.00836596917361021041870117,
        0.0416710823774337768554688,
        0.166665524244308471679688,
        0.499999850988388061523438,
    )
)


def inverse_frequencies(base: float, size: int) -> Floats32:
    """Return ``1 / base^(2i / size)``, float32 ``[size / 2]``."""
    exponents = np.arange(0, size, 2).astype(np.float32) / _f(size)
    frequencies: Floats32 = _f(1) / _power(_f(base), exponents)
    return frequencies


def rotary_frequencies(parameters: Mapping[str, Any], size: int) -> Floats32 | None:
    """Return the frequencies that transformers makes of a config's ``rope_parameters`` for heads of
    a size, float32 ``[size / 2]``.

    Return None for a type that is not known here, for keys that are not known, and unless all
    frequencies are finite and positive.
    """
    kind, keys = parameters["rope_type"], set(parameters) - {"rope_type", "rope_theta", "type"}
    if odd_position(parameters) or keys != _KEYS.get(kind):
        return None
    if not all(is_positive(parameters[key]) for key in (*keys, "rope_theta")):
        return None
    with np.errstate(all="ignore"):
        frequencies = _scaled(kind, parameters, size)
    return frequencies if are_frequencies(frequencies) else None


def are_frequencies(numbers: Floats32) -> bool:
    """Return True if all numbers are finite and positive."""
    return bool(np.isfinite(numbers).all() and (numbers > 0).all())


def _scaled(kind: str, parameters: Mapping[str, Any], size: int) -> Floats32:
    frequencies = inverse_frequencies(parameters["rope_theta"], size)
    if kind == "linear":
        return frequencies / _f(parameters["factor"])
    return _for_llama3(frequencies, parameters) if kind == "llama3" else frequencies


_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
"""By type of rotary positions, the keys that say how frequencies are scaled."""


def _for_llama3(frequencies: Floats32, parameters: Mapping[str, Any]) -> Floats32:
    """Scale low frequencies, leave high ones, and go over from one to the other between."""
    low, high, length = (
        parameters[key] for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    factor = _f(parameters["factor"])
    wavelengths = (_f(1) / frequencies) * _f(2 * math.pi)
    is_long, is_short = wavelengths > _f(length / low), wavelengths < _f(length / high)
    scaled = np.where(is_long, frequencies / factor, frequencies)
    smooth = ((_f(1) / wavelengths) * _f(length) - _f(low)) / _f(high - low)
    between = (_f(1) - smooth) * scaled / factor + smooth * scaled
    return np.where(~is_long & ~is_short, between, scaled)


def _power(base: np.float32, exponents: Floats32) -> Floats32:
    """Return powers as torch does: 32 at a time by Sleef's way, and the rest by the C library."""
    whole = len(exponents) // _AT_A_TIME * _AT_A_TIME
    rest = [_powf(float(base), float(each)) for each in exponents[whole:]]
    return np.concatenate([_exp(_times(_log(base), exponents[:whole])), np.array(rest, np.float32)])


def _log(number: np.float32) -> _Pair:
    mantissa, power = math.frexp(number)
    if mantissa < _LEAST_MANTISSA:
        mantissa, power = mantissa * 2, power - 1
    ratio = _quotient(_sum(_f(-1), _f(mantissa)), _sum(_f(1), _f(mantissa)))
    square = _product(ratio, ratio)
    series = _LOG_FACTORS[0]
    for factor in _LOG_FACTORS[1:]:
        series = _fused(series, square[0], factor)
    result = _added(_times(_LN2, _f(power)), (_f(ratio[0] * 2), _f(ratio[1] * 2)))
    tail = _product(_product(square, ratio), _added_exactly(_times(square, series), _LAST_LOG_FACTOR))
    return _added(result, tail)


def _exp(exponents: _Pair) -> Floats32:
    power = np.rint((exponents[0] + exponents[1]) * _LOG2_E)
    rest = _added_exactly(exponents, (power * _LN2_UPPER, _f(0)))
    rest = _added_exactly(rest, (power * _LN2_LOWER, _f(0)))
    total = rest[0] + rest[1]
    rest = total, (rest[0] - total) + rest[1]
    series = np.full_like(total, _EXP_FACTORS[0])
    for factor in _EXP_FACTORS[1:]:
        series = _fused(series, rest[0], factor)
    value = _added(rest, _times(_product(rest, rest), series))
    value = _added((np.ones_like(total), _f(0)), value)
    scaled: Floats32 = np.ldexp(value[0] + value[1], power.astype(np.int32))
    return scaled


def _fused(first: Any, second: Any, addend: Any) -> Any:
    """Return the product and sum, rounded once."""
    return (np.float64(first) * second + addend).astype(np.float32)


def _sum(first: Any, second: Any) -> _Pair:
    total = first + second
    part = total - first
    return total, (first - (total - part)) + (second - part)


def _added(first: _Pair, second: _Pair) -> _Pair:
    """The larger comes first."""
    total = first[0] + second[0]
    return total, (((first[0] - total) + second[0]) + first[1]) + second[1]


def _added_exactly(first: _Pair, second: _Pair) -> _Pair:
    total, lost = _sum(first[0], second[0])
    return total, lost + (first[1] + second[1])


def _times(first: _Pair, second: Any) -> _Pair:
    product = first[0] * second
    return product, _fused(first[1], second, _fused(first[0], second, -product))


def _product(first: _Pair, second: _Pair) -> _Pair:
    product = first[0] * second[0]
    lost = _fused(first[0], second[0], -product)
    if first is second:
        return product, _fused(first[0] + first[0], first[1], lost)
    return product, _fused(first[0], second[1], _fused(first[1], second[0], lost))


def _quotient(dividend: _Pair, divisor: _Pair) -> _Pair:
    reciprocal = _f(1) / divisor[0]
    quotient = dividend[0] * reciprocal
    lost = _fused(reciprocal, dividend[0], -quotient)
    error = _fused(-divisor[1], reciprocal, _fused(-divisor[0], reciprocal, _f(1)))
    return quotient, _fused(quotient, error, _fused(dividend[1], reciprocal, lost))
