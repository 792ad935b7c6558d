"""Softmax and log-softmax of a row, in float32 and with the same bits on every machine.

Which tokens a filter keeps depends on the last bit of these numbers. So their order of operations
is fixed here. It is the order of torch's CPU kernels with AVX-512: sums in sixteen lanes, and exp
and log as Sleef computes them (Shibata, Petrogalli, "SLEEF: A Portable Vectorized Library of C
Standard Mathematical Functions", 2020). Products that Sleef fuses into sums are computed in float64
and rounded once.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.sampling.kernel import LANES, Floats32, write_exponentials, write_lane_sums

_LN2 = np.float32(0.6931471824645996), np.float32(-1.904654323148236e-09)
_LEAST_MANTISSA = np.float32(0.75)
_LOG_FACTORS = np.float32(0.3027294874), np.float32(0.3996108174), np.float32(0.6666694880)
_ONE, _TWO = np.float32(1), np.float32(2)

_Pair = tuple[np.float32, np.float32]
"""A number of twice the precision: the sum of both."""


def softmax(row: Floats32) -> Floats32:
    """Return the probabilities of a row's tokens, float32 ``[vocabulary]``. At least one logit is
    finite; others may be -inf."""
    weights = exp(row - row.max())
    scaled: Floats32 = weights * (_ONE / _sum(weights))
    return scaled


def log_softmax(row: Floats32) -> Floats32:
    """Return the log-probabilities of a row's tokens, float32 ``[vocabulary]``. At least one logit
    is finite; others may be -inf."""
    largest = row.max()
    logprobs: Floats32 = row - largest - _log(_sum(exp(row - largest)))
    return logprobs


def exp(exponents: Floats32) -> Floats32:
    """Return exp of float32 numbers of at most 0; 0 for those below -104."""
    values = np.empty_like(exponents)
    write_exponentials(exponents, values)
    return values


def _sum(values: Floats32) -> np.float32:
    if len(values) < LANES:
        total = np.float32(values[0])
        for value in values[1:]:
            total = np.float32(total + value)
        return total
    lanes = np.empty(LANES, dtype=np.float32)
    write_lane_sums(values, lanes)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return np.float32(lanes[0])


def _log(number: np.float32) -> np.float32:
    """Return the logarithm of a number of at least 1: ``mantissa * 2^exponent``, of whose mantissa
    in [0.75, 1.5) a series in ``(mantissa - 1) / (mantissa + 1)`` gives it."""
    mantissa, power = math.frexp(number)
    if mantissa < _LEAST_MANTISSA:
        mantissa, power = mantissa * 2, power - 1
    exponent = np.float32(power)
    upper = np.float32(_LN2[0] * exponent)
    result = upper, _fused(_LN2[1], exponent, _fused(_LN2[0], exponent, -upper))
    ratio = _quotient(_added(-_ONE, np.float32(mantissa)), _added(_ONE, np.float32(mantissa)))
    square = np.float32(ratio[0] * ratio[0])
    series = _LOG_FACTORS[0]
    for factor in _LOG_FACTORS[1:]:
        series = _fused(series, square, factor)
    result = _pairs_added(result, (_TWO * ratio[0], _TWO * ratio[1]))
    result = _pairs_added(result, (np.float32(square * ratio[0]) * series, np.float32(0)))
    return np.float32(result[0] + result[1])


def _fused(first: np.float32, second: np.float32, addend: np.float32) -> np.float32:
    return np.float32(np.float64(first) * np.float64(second) + np.float64(addend))


def _added(first: np.float32, second: np.float32) -> _Pair:
    total = np.float32(first + second)
    part = np.float32(total - first)
    return total, np.float32((first - (total - part)) + (second - part))


def _pairs_added(first: _Pair, second: _Pair) -> _Pair:
    total = np.float32(first[0] + second[0])
    return total, np.float32(((first[0] - total) + second[0]) + first[1] + second[1])


def _quotient(dividend: _Pair, divisor: _Pair) -> _Pair:
    reciprocal = np.float32(_ONE / divisor[0])
    quotient = np.float32(dividend[0] * reciprocal)
    lost = _fused(reciprocal, dividend[0], -quotient)
    error = _fused(-divisor[1], reciprocal, _fused(-divisor[0], reciprocal, _ONE))
    return quotient, _fused(quotient, error, _fused(dividend[1], reciprocal, lost))
