"""Compiled code that chooses tokens: the field of noise, the search of each row for its best token,
and the changes that rules make to logits.

It is one file, and imports nothing of this project. Numba stores compiled code by the file of its
function, and would not notice that a function of another file has changed. Sums keep their order
and products are not fused into them (no fast-math), so that a loop's bits are the same on every
processor. Compiled code releases Python's lock: the event loop does not wait for a choice.

**The noise.** A number for each (seed, position, token), the same on every machine. A token's noise
is an arrival time, exponential with mean 1 and independent of all others. The token with the
smallest ``arrival * exp(-logit)`` is a draw from the logits' softmax, and so is the argmax of
``logit - log(arrival)``: minus the logarithm of an arrival is standard Gumbel noise.

The field is that of version 2 (`slipstream.sampling.rule.SAMPLING_VERSION`). It is drawn in blocks
of `BLOCK` tokens, so that a few numbers tell which of 128,000 tokens can win at all. The first of n
independent arrivals is exponential with mean 1/n; which token's it is is uniform; and the others
come after it as if they began then, for arrivals have no memory. So a block's first arrival, its
token, and the time of its second are drawn alone, and the others' only where a block has to be
opened.

Words come from Philox4x64-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1,
2, 3", SC 2011). The key is (seed, 0) and the counter (1 + index / 4, position, domain, 0). The
index modulo 4 picks one of the counter's four words. Noise is always computed on the CPU in
float64, also for logits of another device, so that no device's logarithm changes a text.

**The search.** No row is searched token by token. A block's largest logit and its first arrival
bound what any of its tokens can reach: blocks that cannot beat the best token found so far stay
closed. Nor is any row sorted for a top-p: its winner is looked for among all tokens, and is thrown
out, with all that are no likelier, if those above it have the mass already. (Rejection instead of
sorting is FlashInfer's idea, Ye et al. 2025; here nothing is drawn again: the next best under the
same noise takes its place.) A row is searched after another, and so none depends on those beside
it.

``stored`` logits are the bits of float32 as int32, or of bfloat16 as int16; ``maxima`` are those of
a row's blocks. Loops over whole blocks have a length that the compiler knows, or it would not
compute on several tokens at a time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """A function compiled to machine code, once for each combination of argument types."""
    try:
        return cast(Function, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # there is no folder to keep it in: each process then compiles for itself
        return cast(Function, numba.njit(nogil=True)(function))


MACHINE = (numba.__version__, sys.version, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
"""Facts, besides its sources, that stored code depends on."""


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


def _leading_zeros(context: Any, word: Any) -> tuple[Any, Any]:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), code


multiply_high = intrinsic(_multiply_high)
"""The upper 64 bits of the product of two uint64."""

bits_of = intrinsic(_bits)
"""The bits of a float32 as int32, from these or from a bfloat16's as int16, which are the upper
half of them."""

float_of = intrinsic(_float)
"""The float32 of which an int32 has the bits."""

leading_zeros = intrinsic(_leading_zeros)
"""The number of zeros that a uint64 begins with: 64 where it is zero."""


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BLOCK = 64


class Domain(IntEnum):
    """The use of a random word, so that no two uses ever share one."""

    FIRST = 0
    """The time of a block's first token, and which token it is. The index is the block's
    number."""
    SECOND = 1
    """The time from a block's first token to its second."""
    OTHERS = 2
    """The time of a token of an opened block. The index is the token's id."""
    PROPOSAL = 3
    """The draft's own token under the ratio test."""
    ACCEPTANCE = 4
    """The ratio test's coin."""
    RECOVERY = 5
    """The token drawn after the ratio test has rejected one."""


# Compiled code knows no enumerations, and takes the type of a sum of a word and a plain integer for
# float64.
FIRST, _SECOND, _OTHERS = np.uint64(Domain.FIRST), np.uint64(Domain.SECOND), np.uint64(Domain.OTHERS)
_MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_WEYL = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_PLACE_MASK, _UNUSED_BITS = np.uint64(BLOCK - 1), np.uint64(12)
_LOG_BLOCK, _LOG_2 = math.log(BLOCK), math.log(2)
_ROUNDS = 10


@compiled
def four_words(seed: np.uint64, position: np.uint64, domain: np.uint64, index: int) -> tuple[np.uint64, ...]:
    """The words from ``index``, a multiple of four, on."""
    first, second, third, fourth = np.uint64(1 + index // 4), position, domain, np.uint64(0)
    key, other_key = seed, np.uint64(0)
    for _ in range(_ROUNDS):
        low, high = first * _MULTIPLIERS[0], multiply_high(first, _MULTIPLIERS[0])
        other_low, other_high = third * _MULTIPLIERS[1], multiply_high(third, _MULTIPLIERS[1])
        first, second, third, fourth = other_high ^ second ^ key, other_low, high ^ fourth ^ other_key, low
        key, other_key = key + _WEYL[0], other_key + _WEYL[1]
    return first, second, third, fourth


@compiled
def wait(word: np.uint64) -> float:
    """Exponential with mean 1, from a word's upper 52 bits."""
    return -math.log((np.float64(word >> _UNUSED_BITS) + 0.5) * 2.0**-52)


@compiled
def first_arrival(word: np.uint64) -> float:
    """When the first token of a block arrives, by the block's word."""
    return wait(word) / BLOCK


@compiled
def most_noise(word: np.uint64) -> float:
    """Return a bound of minus the logarithm of a block's `first_arrival`, without a logarithm.

    -log u is at least 1 - u, and that is more than 2^-(n + 1) where the word begins with n ones.
    Near the largest word the bound may be less by rounding."""
    return _LOG_BLOCK + _LOG_2 * (1 + np.float64(leading_zeros(~word)))


@compiled
def first_place(word: np.uint64) -> int:
    """Return the token of a block that arrives first, by the block's word."""
    return np.int64(word & _PLACE_MASK)  # type: ignore[return-value] # numpy's integers are integers where this runs


@compiled
def second_arrival(seed: np.uint64, position: np.uint64, block: int, first: float) -> float:
    """When a block's second token arrives."""
    words = four_words(seed, position, _SECOND, block // 4 * 4)
    return first + wait(words[block % 4]) / (BLOCK - 1)


@compiled
def other_arrivals(seed: np.uint64, position: np.uint64, block: int, place: int, second: float, times: Floats) -> None:
    """Write when the tokens of a block arrive ``[BLOCK]``, but for the first of them, at ``place``:
    it is left as infinite.

    Of their exponential times the smallest is taken off: what is left of each is again exponential,
    and the token whose time that was comes second.
    """
    least = np.inf
    for group in range(0, BLOCK, 4):
        words = four_words(seed, position, _OTHERS, block * BLOCK + group)
        for offset in range(4):
            times[group + offset] = np.inf if group + offset == place else wait(words[offset])
            least = min(least, times[group + offset])
    for token in range(BLOCK):
        times[token] += second - least


@compiled
def _fill(seed: np.uint64, position: np.uint64, domain: np.uint64, start: int, words: Words) -> None:
    for at in range(len(words)):
        words[at] = four_words(seed, position, domain, (start + at) // 4 * 4)[at % 4]


def compiled_folder() -> Path | None:
    """Return the folder where compiled functions are stored. None if they are not."""
    folder = _fill.stats.cache_path  # type: ignore[attr-defined] # of Numba's dispatcher
    return Path(folder) if folder else None


def random_words(seed: int, position: int, domain: Domain, start: int, count: int) -> Words:
    """``count`` words from index ``start``, a multiple of four, on."""
    words = np.empty(count, dtype=np.uint64)
    _fill(np.uint64(seed), np.uint64(position), np.uint64(domain), start, words)
    return words


def coin(seed: int, position: int, domain: Domain) -> float:
    """One number in (0, 1), from the upper 52 bits of the first word."""
    bits = int(random_words(seed, position, domain, 0, 1)[0]) >> int(_UNUSED_BITS)
    return (bits + 0.5) * 2.0**-52


Stored = NDArray[Any]
Floats32 = NDArray[np.float32]
Ints32 = NDArray[np.int32]
Mask = NDArray[np.bool_]

_BLOCKS_AT_A_TIME = 32
"""Before it is looked whether their weight is enough."""

_NONE = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_MAGNITUDE, _SIGN_SHIFT, _INFINITE = np.int32(0x7FFFFFFF), np.int32(31), np.int32(0x7F800000)
_MINUS_INFINITE = np.int32(-0x00800000)
_LEAST_INTEGER = np.int32(-0x80000000)

# exp, as Cephes' expf (Moshier 1989) has it: by a power of two and a polynomial, to two units in
# the last place.
_LEAST_EXPONENT = np.float32(-87.0)
_LOG2_E = np.float32(1.44269504088896341)
_TO_WHOLE = np.float32(1.5 * 2**23)
"""Added and taken off again it leaves a whole number."""
_LN2_UPPER, _LN2_LOWER = np.float32(0.693359375), np.float32(-2.12194440e-4)
_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)
_EXP = tuple(
    np.float32(factor)
    for factor in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)


@compiled
def _exp(exponent: np.float32) -> np.float32:
    """exp of a float32 of at most 0; of less than -87 it is 0."""
    kept = exponent if exponent > _LEAST_EXPONENT else _LEAST_EXPONENT
    power = (kept * _LOG2_E + _TO_WHOLE) - _TO_WHOLE
    rest = kept - power * _LN2_UPPER
    rest = rest - power * _LN2_LOWER
    value = _EXP[0]
    value = value * rest + _EXP[1]
    value = value * rest + _EXP[2]
    value = value * rest + _EXP[3]
    value = value * rest + _EXP[4]
    value = value * rest + _EXP[5]
    value = (value * rest) * rest + rest + _ONE
    value = value * float_of(np.int32(np.int32(np.int32(power) + _BIAS) << _MANTISSA_BITS))
    return value if exponent >= _LEAST_EXPONENT else _ZERO


# exp with the bits of torch's CPU kernels, as Sleef computes it (Shibata, Petrogalli 2020).
# Products that Sleef fuses into sums are computed in float64 and rounded once.
_SLEEF_LEAST = np.float32(-104.0)
_SLEEF_LN2_UPPER, _SLEEF_LN2_LOWER = -0.693145751953125, -1.428606765330187e-06
_SLEEF_FIRST = np.float32(0.000198527617612853646)
_SLEEF_EXP = tuple(
    float(np.float32(factor))
    for factor in (
        0.00139304355252534151,
        0.00833336077630519867,
        0.0416664853692054749,
        0.166666671633720398,
        0.5,
    )
)


@compiled
def write_exponentials(exponents: Floats32, values: Floats32) -> None:
    """Write exp of float32 ``exponents`` of at most 0 to ``values``; 0 for those below -104."""
    for at in range(len(exponents)):
        exponent = exponents[at]
        kept = exponent if exponent > _SLEEF_LEAST else _SLEEF_LEAST
        power = (kept * _LOG2_E + _TO_WHOLE) - _TO_WHOLE
        rest = np.float32(power * _SLEEF_LN2_UPPER + kept)
        rest = np.float32(power * _SLEEF_LN2_LOWER + rest)
        wide = np.float64(rest)
        value = np.float32(_SLEEF_FIRST * wide + _SLEEF_EXP[0])
        value = np.float32(value * wide + _SLEEF_EXP[1])
        value = np.float32(value * wide + _SLEEF_EXP[2])
        value = np.float32(value * wide + _SLEEF_EXP[3])
        value = np.float32(value * wide + _SLEEF_EXP[4])
        value = _ONE + np.float32(np.float64(rest * rest) * np.float64(value) + wide)
        # Two steps: the power may be below that of the least float32, and only the last one rounds.
        half = np.int32(np.int32(power) >> np.int32(1))
        value = value * float_of(np.int32(np.int32(half + _BIAS) << _MANTISSA_BITS))
        value = value * float_of(np.int32(np.int32(np.int32(np.int32(power) - half) + _BIAS) << _MANTISSA_BITS))
        values[at] = value if exponent >= _SLEEF_LEAST else _ZERO


LANES = 16
"""Sums of a row that `write_lane_sums` takes side by side, as torch does with AVX-512."""


@compiled
def write_lane_sums(values: Floats32, sums: Floats32) -> None:
    """Write to ``sums`` ``[LANES]`` the sum of every `LANES`-th of the ``values``, in their order,
    from the first, the second and so on."""
    sums[:] = _ZERO
    whole = len(values) // LANES * LANES
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            sums[lane] += values[first + lane]
    for at in range(whole, len(values)):
        sums[at - whole] += values[at]


@compiled
def logit(stored: Any) -> np.float32:
    """A stored logit as a number."""
    return np.float32(float_of(bits_of(stored)))


@compiled
def _ordered(bits: np.int32) -> np.int32:
    """A float32's bits as an integer that is larger where the number is; twice taken, the bits
    again."""
    return np.int32(bits ^ np.int32(np.int32(bits >> _SIGN_SHIFT) & _MAGNITUDE))


@compiled
def _end_of(block: int, size: int) -> int:
    return min((block + 1) * BLOCK, size)


@compiled
def _filled_up(tokens: Stored) -> Stored:
    """A row's last tokens as a whole block: the others at -inf."""
    block = np.empty(BLOCK, dtype=tokens.dtype)
    block[:] = _MINUS_INFINITE >> (0 if tokens.itemsize == 4 else 16)
    for at in range(len(tokens)):  # to assign a slice would compile how its error is worded, for two seconds
        block[at] = tokens[at]
    return block


@compiled
def _largest_of(block: Stored) -> np.float32:
    best, magnitude = _LEAST_INTEGER, np.int32(0)
    for token in range(BLOCK):
        bits = bits_of(block[token])
        best, magnitude = max(best, _ordered(bits)), max(magnitude, np.int32(bits & _MAGNITUDE))
    return np.float32(float_of(_ordered(best))) if magnitude <= _INFINITE else np.float32(np.nan)


@compiled
def find_maxima(stored: Stored, maxima: Floats32, largest: Floats32, start: int, end: int) -> None:
    """Write the largest logit of each block to ``maxima`` ``[rows, blocks]``, and of each row to
    ``largest`` ``[rows]``, for rows from ``start`` to before ``end`` of ``stored`` ``[rows,
    vocabulary]``. It is NaN if any logit is."""
    whole = stored.shape[1] // BLOCK
    for at in range(start, end):
        row = stored[at]
        for block in range(whole):
            maxima[at, block] = _largest_of(row[block * BLOCK : block * BLOCK + BLOCK])
        if whole < maxima.shape[1]:
            maxima[at, whole] = _largest_of(_filled_up(row[whole * BLOCK :]))
        largest[at] = -np.inf
        for value in maxima[at]:
            if not value <= largest[at]:  # NaN stays: nothing is at most NaN
                largest[at] = value if largest[at] == largest[at] else largest[at]


@compiled
def _insert(token: int, score: float, tokens: Ints, scores: Floats) -> None:
    """Take a token into the best ones, best first, of equals the lower id."""
    last = len(scores) - 1
    if score < scores[last] or (score == scores[last] and token > tokens[last]):
        return
    at = last
    while at > 0 and (score > scores[at - 1] or (score == scores[at - 1] and token < tokens[at - 1])):
        tokens[at], scores[at] = tokens[at - 1], scores[at - 1]
        at -= 1
    tokens[at], scores[at] = token, score


@compiled
def _clear(tokens: Ints, scores: Floats) -> None:
    tokens[:] = np.iinfo(np.int64).max
    scores[:] = -np.inf


@compiled
def _add_weights(
    block: Stored, sharpness: np.float32, largest: np.float32, lowest: np.float32, weights: Floats32, sums: Floats
) -> None:
    for token in range(BLOCK):
        value = logit(block[token])
        weights[token] = _exp((value - largest) * sharpness) if value >= lowest else _ZERO
    for token in range(BLOCK):
        sums[token] += weights[token]


@compiled
def _mass(
    row: Stored, maxima: Floats32, temperature: float, largest: np.float32, lowest: np.float32, enough: float
) -> float:
    """The sum of ``exp((logit - largest) / temperature)`` over a row's tokens from the ``lowest``
    logit on, or as much of it as is more than ``enough``: what is left out would only make it
    larger."""
    sharpness, whole = np.float32(1 / temperature), len(row) // BLOCK
    weights, sums = np.empty(BLOCK, dtype=np.float32), np.zeros(BLOCK, dtype=np.float64)
    for block in range(whole):
        if maxima[block] >= lowest:
            tokens = row[block * BLOCK : block * BLOCK + BLOCK]
            _add_weights(tokens, sharpness, largest, lowest, weights, sums)
        if block % _BLOCKS_AT_A_TIME == 0 and sums.sum() > enough:
            return float(sums.sum())
    if whole < len(maxima) and maxima[whole] >= lowest:
        _add_weights(_filled_up(row[whole * BLOCK :]), sharpness, largest, lowest, weights, sums)
    return float(sums.sum())


@compiled
def _kth_of(ordered: Ints32, count: int) -> np.float32:
    """Return the ``count``-th largest of numbers that are given as `_ordered` integers, by
    bisection."""
    least, most = -(2**31), 2**31 - 1
    while least < most:
        middle = (least + most + 1) // 2
        bound, found = np.int32(middle), 0
        for each in ordered:
            found += each >= bound
        if found >= count:
            least = middle
        else:
            most = middle - 1
    return np.float32(float_of(_ordered(np.int32(least))))


@compiled
def _kth_largest(row: Stored, maxima: Floats32, count: int) -> np.float32:
    """A row's ``count``-th largest logit.

    As many blocks as that have a logit that is no smaller than the same of the maxima, so that it
    is no smaller either.
    """
    ordered = np.empty(len(row), dtype=np.int32)
    floor = _NONE
    if count < len(maxima):
        for block in range(len(maxima)):
            ordered[block] = _ordered(bits_of(maxima.view(np.int32)[block]))
        floor = _kth_of(ordered[: len(maxima)], count)
    found = 0
    for block in range(len(maxima)):
        if maxima[block] >= floor:
            for token in range(block * BLOCK, _end_of(block, len(row))):
                if logit(row[token]) >= floor:
                    ordered[found] = _ordered(bits_of(row[token]))
                    found += 1
    return _kth_of(ordered[:found], count)


@compiled
def _open(
    row: Stored,
    seed: np.uint64,
    position: np.uint64,
    block: int,
    word: np.uint64,
    temperature: np.float32,
    lowest: np.float32,
    reach: float,
    slack: float,
    times: Floats,
    tokens: Ints,
    scores: Floats,
) -> None:
    """Take the tokens of a block into the best ones: the one that comes first, and if they may win
    the others.

    ``word`` is the block's first, ``reach`` its largest logit over the temperature, ``times``
    memory for a block.
    """
    first, place = first_arrival(word), first_place(word)
    start, end = block * BLOCK, _end_of(block, len(row))
    if start + place < end:
        value = logit(row[start + place])
        if value >= lowest:
            _insert(start + place, np.float64(value / temperature) - math.log(first), tokens, scores)
    second = second_arrival(seed, position, block, first)
    latest = -math.log(second)
    if reach + latest < scores[0] - slack:  # not where both are -inf: then nothing has been found yet
        return
    other_arrivals(seed, position, block, place, second, times)
    for token in range(start, end):
        value = logit(row[token])
        if value < lowest or token == start + place:
            continue
        reached = np.float64(value / temperature)
        if reached + latest >= scores[0] - slack:
            _insert(token, reached - math.log(times[token - start]), tokens, scores)


@compiled
def _race(
    row: Stored,
    maxima: Floats32,
    seed: np.uint64,
    position: np.uint64,
    temperature: np.float32,
    lowest: np.float32,
    slack: float,
    tokens: Ints,
    scores: Floats,
) -> None:
    """Write a row's best tokens, best first, and their logits over the temperature plus noise;
    those below ``lowest`` have none, and those further than ``slack`` behind the best may be
    missing."""
    times = np.empty(BLOCK, dtype=np.float64)
    _clear(tokens, scores)
    # The block with the largest logit first: what is found there keeps most others closed.
    likeliest = int(maxima.argmax())
    word = four_words(seed, position, FIRST, likeliest // 4 * 4)[likeliest % 4]
    reach = np.float64(maxima[likeliest] / temperature)
    _open(row, seed, position, likeliest, word, temperature, lowest, reach, slack, times, tokens, scores)
    for group in range(0, len(maxima), 4):
        words = four_words(seed, position, FIRST, group)
        for offset in range(min(4, len(maxima) - group)):
            block = group + offset
            if block == likeliest or maxima[block] < lowest:
                continue
            reach, least = np.float64(maxima[block] / temperature), scores[0] - slack
            if reach + most_noise(words[offset]) <= least:
                continue
            if reach - math.log(first_arrival(words[offset])) > least:
                _open(
                    row, seed, position, block, words[offset], temperature, lowest, reach, slack, times, tokens, scores
                )


@compiled
def _at_least(bound: float) -> np.float32:
    """The least float32 that is no smaller."""
    nearest = np.float32(bound)
    return np.nextafter(nearest, np.float32(np.inf)) if nearest < bound else nearest


@compiled
def draw(
    stored: Stored,
    maxima: Floats32,
    rows: Ints,
    numbers: Any,
    positions: Words,
    slack: float,
    tokens: Ints,
    scores: Floats,
    logprobs: Floats,
    start: int,
    end: int,
) -> None:
    """The coupled draw of some ``rows`` of ``stored`` ``[*, vocabulary]``, each by its own
    sampling fields and position: of those from ``start`` to before ``end``.

    Writes each one's best tokens and scores ``[rows, n]``, best first, n at least 2; and, if there
    is room for them, ``logprobs`` ``[rows]`` of the best among what the cut keeps, near enough for
    a draft's confidence.
    """
    for at in range(start, end):
        row, own = stored[rows[at]], maxima[rows[at]]
        own_numbers = numbers[at]
        exact, top_p, min_p = own_numbers.temperature, own_numbers.top_p, own_numbers.min_p
        top_k: Any = np.int64(own_numbers.top_k)
        seed, temperature = own_numbers.seed, np.float32(exact)
        largest = own.max()
        floor = _kth_largest(row, own, top_k) if 0 < top_k < len(row) else _NONE
        lowest = floor
        if min_p > 0:
            lowest = max(lowest, _at_least(largest + exact * math.log(min_p)))
        _race(row, own, seed, positions[at], temperature, lowest, slack, tokens[at], scores[at])
        value = logit(row[tokens[at, 0]])
        total = np.inf
        while top_p < 1 and value < largest:
            likelier = np.nextafter(value, np.float32(np.inf))
            above = _mass(row, own, exact, largest, likelier, np.inf)
            if total == np.inf:  # all of it, unless less is enough to keep the first winner
                total = _mass(row, own, exact, largest, floor, above / top_p)
            if total > above / top_p:
                break
            lowest = likelier
            _race(row, own, seed, positions[at], temperature, lowest, slack, tokens[at], scores[at])
            value = logit(row[tokens[at, 0]])
        if len(logprobs):
            kept = _mass(row, own, exact, largest, lowest, np.inf)
            logprobs[at] = (np.float64(value) - np.float64(largest)) / exact - math.log(kept)


@compiled
def find_likeliest(
    stored: Stored,
    maxima: Floats32,
    rows: Ints,
    tokens: Ints,
    values: Floats,
    logprobs: Floats,
    start: int,
    end: int,
) -> None:
    """The largest logits of some ``rows``, of equals the lower ids: read and written as `draw`
    does."""
    for at in range(start, end):
        row, own = stored[rows[at]], maxima[rows[at]]
        _clear(tokens[at], values[at])
        for block in range(len(own)):
            if own[block] > values[at, -1]:
                for token in range(block * BLOCK, _end_of(block, len(row))):
                    _insert(token, np.float64(logit(row[token])), tokens[at], values[at])
        if len(logprobs):
            logprobs[at] = -math.log(_mass(row, own, 1.0, own.max(), _NONE, np.inf))


@compiled
def _add_new(context: Ints, start: int, end: int, counts: Ints32, tokens: Ints, token_count: int) -> int:
    """Count the tokens of ``context[start:end]``, and add those to ``tokens`` that are new; returns
    how many there are then."""
    for at in range(start, end):
        token = context[at]
        if 0 <= token < len(counts):
            if counts[token] == 0:
                tokens[token_count] = token
                token_count += 1
            counts[token] += 1
    return token_count


@compiled
def _widen(row: Stored, bits: Ints32) -> None:
    for token in range(len(row)):
        bits[token] = bits_of(row[token])


@compiled
def _bias(row: Floats32, tokens: Ints, biases: Floats32, is_touched: Mask) -> None:
    for at in range(len(tokens)):
        token = tokens[at]
        if 0 <= token < len(row):
            row[token] += biases[at]
            is_touched[token // BLOCK] = True


@compiled
def _penalise_repetition(row: Floats32, tokens: Ints, repetition: np.float32, is_touched: Mask) -> None:
    for token in tokens:
        row[token] = row[token] * repetition if row[token] < 0 else row[token] / repetition
        is_touched[token // BLOCK] = True


@compiled
def _penalise_counts(
    row: Floats32, tokens: Ints, counts: Ints32, frequency: np.float32, presence: np.float32, is_touched: Mask
) -> None:
    for token in tokens:
        row[token] = (row[token] - frequency * np.float32(counts[token])) - presence
        is_touched[token // BLOCK] = True


@compiled
def _forbid(row: Floats32, tokens: Ints, is_touched: Mask) -> None:
    for token in tokens:
        if 0 <= token < len(row):
            row[token] = _NONE
            is_touched[token // BLOCK] = True


@compiled
def _forbid_others(row: Floats32, allowed: Ints, own: Floats32, is_touched: Mask) -> None:
    kept = np.empty(len(allowed), dtype=np.float32)
    for at in range(len(allowed)):
        kept[at] = row[allowed[at]] if 0 <= allowed[at] < len(row) else _NONE
    row[:] = _NONE
    own[:] = _NONE
    is_touched[:] = False
    for at in range(len(allowed)):
        if 0 <= allowed[at] < len(row):
            row[allowed[at]] = kept[at]
            is_touched[allowed[at] // BLOCK] = True


@compiled
def _find_again(row: Floats32, own: Floats32, is_touched: Mask) -> None:
    """Find the maxima of a row's blocks that have been touched."""
    bits, whole = row.view(np.int32), len(row) // BLOCK
    for block in range(len(own)):
        if is_touched[block]:
            if block < whole:
                own[block] = _largest_of(bits[block * BLOCK : block * BLOCK + BLOCK])
            else:
                own[block] = _largest_of(_filled_up(bits[whole * BLOCK :]))


@compiled
def process_rows(
    stored: Stored,
    maxima: Floats32,
    sources: Ints,
    processed: Floats32,
    processed_maxima: Floats32,
    targets: Ints,
    positions: Ints,
    context: Ints,
    biased: Ints,
    biases: Floats32,
    repetition: np.float32,
    first_counted: int,
    frequency: np.float32,
    presence: np.float32,
    banned: Ints,
    ends: Ints,
    first_end_position: int,
    allowed: Ints,
) -> None:
    """Apply a rule to rows of one context, by rising positions. Rows of ``stored`` at ``sources``
    are read. Rows of ``processed`` at ``targets`` are written, float32, and so are their maxima,
    which are found again for the blocks that the rule touched.

    The order is transformers': biases; then penalties for tokens that have occurred, ``repetition``
    from the context's beginning, ``frequency`` and ``presence`` from ``first_counted`` on. Then the
    ``banned`` tokens are removed, the ``ends`` before ``first_end_position``, and, if any are
    listed, all but the ``allowed``. Tokens beyond the vocabulary have no logit.
    """
    size, repeats, counts = processed.shape[1], repetition != 1, frequency != 0 or presence != 0
    occurred, occurrences = np.zeros(size * repeats, dtype=np.int32), np.empty(len(context) * repeats, dtype=np.int64)
    counted, generated = np.zeros(size * counts, dtype=np.int32), np.empty(len(context) * counts, dtype=np.int64)
    occurrence_count, generated_count, seen, seen_generated = 0, 0, 0, first_counted
    is_touched = np.empty(processed_maxima.shape[1], dtype=np.bool_)
    for at in range(len(targets)):
        row, own = processed[targets[at]], processed_maxima[targets[at]]
        _widen(stored[sources[at]], row.view(np.int32))
        for block in range(len(own)):
            own[block] = maxima[sources[at], block]
        is_touched[:] = False
        _bias(row, biased, biases, is_touched)
        end = min(positions[at], len(context))
        if repeats:
            occurrence_count = _add_new(context, seen, end, occurred, occurrences, occurrence_count)
            seen = max(seen, end)
            _penalise_repetition(row, occurrences[:occurrence_count], repetition, is_touched)
        if counts:
            generated_count = _add_new(context, seen_generated, end, counted, generated, generated_count)
            seen_generated = max(seen_generated, end)
            _penalise_counts(row, generated[:generated_count], counted, frequency, presence, is_touched)
        _forbid(row, banned, is_touched)
        if positions[at] < first_end_position:
            _forbid(row, ends, is_touched)
        if len(allowed):
            _forbid_others(row, allowed, own, is_touched)
        _find_again(row, own, is_touched)


@compiled
def restrict_row(processed: Floats32, maxima: Floats32, index: int, is_allowed: Mask) -> None:
    """In place, of the row at ``index`` all but what ``is_allowed`` ``[vocabulary]``."""
    row = processed[index]
    for token in range(len(row)):
        row[token] = row[token] if is_allowed[token] else _NONE
    _find_again(row, maxima[index], np.ones(maxima.shape[1], dtype=np.bool_))
