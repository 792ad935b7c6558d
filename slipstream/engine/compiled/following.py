"""Choosing after a step of a run, and setting up the step that begins with each row's choice.

Several steps are then one call: between two of them Python would take as long as a small model
does.

What is chosen is what `slipstream.sampling.choose` would choose, by the same code. It is compiled
apart from the walk, as tiles are.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import carray, types

from slipstream.engine.compiled.keeping import keep, made_of
from slipstream.engine.compiled.lanes import LANES, Code, compiled, pointer, read_integer, write_integer
from slipstream.engine.compiled.records import RUN, STEP
from slipstream.sampling.kernel import BLOCK, draw, find_likeliest, find_maxima
from slipstream.sampling.rule import NUMBERS

_WIDTH = 2
_NUMBERS_SIZE = NUMBERS.itemsize


@functools.cache
def following() -> Any:
    """The C function, of a step's place and its number in a run, that chooses after it. Whether
    another one follows, which the step then says."""
    return keep(types.int64(types.int64, types.int64), _entry_of(made_of()))


def _entry_of(made_of: str) -> Code:
    def entry(place: Any, index: Any) -> Any:
        made_of  # noqa: B018 # in the closure, so that Numba tells one from another
        return _follow(carray(pointer(place), (1,), STEP)[0], index)

    return entry


@compiled
def _follow(step: Any, index: int) -> bool:
    run = carray(pointer(step.run), (1,), RUN)[0]
    goes_on = False
    for row in range(run.row_count):
        if not _choose(step, run, index, row):
            return False
        if _is_end(run, row, read_integer(_token_of(run, index, row))):
            write_integer(run.ended + 8 * row, 1)
        goes_on = goes_on or not read_integer(run.ended + 8 * row)
    run.done = index + 1
    if run.done == run.count or not goes_on or read_integer(run.stop_flag):
        return False
    if index == 0:
        _take_over(step, run)
    for row in range(run.row_count):
        _append(step, run, index, row)
    step.logits += run.logits_step
    return True


@compiled
def _token_of(run: Any, index: int, row: int) -> int:
    place: int = run.tokens + 8 * _WIDTH * (index * run.row_count + row)
    return place


@compiled
def _is_end(run: Any, row: int, token: int) -> bool:
    """By halving: a rule may list thousands."""
    least, most = read_integer(run.end_places + 8 * row), read_integer(run.end_places + 8 * row + 8)
    last = most
    while least < most:
        middle = (least + most) // 2
        if read_integer(run.ends + 8 * middle) < token:
            least = middle + 1
        else:
            most = middle
    found: bool = least < last and read_integer(run.ends + 8 * least) == token
    return found


@compiled
def _choose(step: Any, run: Any, index: int, row: int) -> bool:
    """Write a row's best two tokens, their scores and, for a draft, the first one's
    log-probability. False if its logits are not finite: the caller then runs this step alone,
    which says why."""
    stored = carray(pointer(step.logits + 4 * row * step.vocabulary_columns), (1, run.vocabulary_size), np.int32)
    maxima = carray(pointer(run.maxima), (1, (run.vocabulary_size + BLOCK - 1) // BLOCK), np.float32)
    largest = carray(pointer(run.largest), (1,), np.float32)
    find_maxima(stored, maxima, largest, 0, 1)
    if not math.isfinite(largest[0]):
        return False
    at = index * run.row_count + row
    tokens = carray(pointer(_token_of(run, index, row)), (1, _WIDTH), np.int64)
    scores = carray(pointer(run.scores + 8 * _WIDTH * at), (1, _WIDTH), np.float64)
    logprobs = carray(pointer(run.logprobs + 8 * at * run.logprob_count), (run.logprob_count,), np.float64)
    first = np.zeros(1, dtype=np.int64)
    numbers = carray(pointer(run.numbers + _NUMBERS_SIZE * row), (1,), NUMBERS)
    if numbers[0].temperature == 0:
        find_likeliest(stored, maxima, first, tokens, scores, logprobs, 0, 1)
        return True
    draw(
        stored,
        maxima,
        first,
        numbers,
        carray(pointer(run.positions + 8 * row), (1,), np.uint64),
        run.slack,
        tokens,
        scores,
        logprobs,
        0,
        1,
    )
    return True


@compiled
def _take_over(step: Any, run: Any) -> None:
    """From the second step on there is one row of each sequence."""
    following = carray(pointer(run.following), (1,), STEP)[0]
    step.origin, step.row_count, step.wanted_count = following.origin, following.row_count, following.wanted_count
    step.ids, step.positions, step.slots = following.ids, following.positions, following.slots
    step.part_count, step.part_rows, step.part_counts, step.part_tables = (
        following.part_count,
        following.part_rows,
        following.part_counts,
        following.part_tables,
    )
    step.wanted_part_count, step.wanted_part_rows, step.wanted_part_counts = (
        following.wanted_part_count,
        following.wanted_part_rows,
        following.wanted_part_counts,
    )
    step.wanted_part_tables, step.wanted_part_places = following.wanted_part_tables, following.wanted_part_places


@compiled
def _append(step: Any, run: Any, index: int, row: int) -> None:
    """A row's token to its sequence."""
    position = read_integer(run.positions + 8 * row)
    block = read_integer(read_integer(step.part_tables + 8 * row) + 8 * (position // LANES))
    write_integer(step.ids + 8 * row, read_integer(_token_of(run, index, row)))
    write_integer(step.positions + 8 * row, position)
    write_integer(step.slots + 8 * row, block * LANES + position % LANES)
    write_integer(run.positions + 8 * row, position + 1)
