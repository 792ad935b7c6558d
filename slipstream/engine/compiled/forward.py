"""One forward, compiled as a whole: the walk through the layers, which all threads of a team take
together. Of a run (`multi_step_runner`) it is several, with what `following` does between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import carray, types

from slipstream.engine.compiled.keeping import keep, made_of
from slipstream.engine.compiled.lanes import INT64, LANES, compiled, operation, pointer
from slipstream.engine.compiled.matrices import close_matrices, open_for_products
from slipstream.engine.compiled.phases import (
    ADDED,
    GATED,
    STORED,
    Going,
    attend,
    embed,
    going_on,
    input_width_of,
    keep_input,
    multiply_rows,
    normalize,
    place_row,
)
from slipstream.engine.compiled.products import TILE_COLUMNS
from slipstream.engine.compiled.records import LAYER, STEP
from slipstream.engine.compiled.team import Share, begin, complete, finish, next_forward, take

Walk = Callable[[int, int], None]

_PHASES_OF_A_LAYER = 8


@compiled
def _attention(step: Any, layer: Any, share: Share, phase: int, going: Going) -> None:
    """A layer's first half: five phases, of which the last two are of the rows that go on."""
    attended = step.head_count * step.head_size
    projected = attended + 2 * step.kv_head_count * step.head_size
    done = 0
    first, end = take(share, phase, step.row_count)
    while first < end:
        for row in range(first, end):
            if layer.kept_input:
                keep_input(step, layer, row)
            normalize(step, step.residual, row, layer.attention_norm)
        done += end - first
        first, end = take(share, phase, step.row_count)
    complete(share, phase, step.row_count, done)
    multiply_rows(
        step,
        share,
        phase + 1,
        step.inputs,
        step.hidden_size,
        step.row_count,
        layer.projection,
        layer.projection_bias,
        projected // TILE_COLUMNS,
        STORED,
        step.projected,
        projected * 4,
    )
    done = 0
    first, end = take(share, phase + 2, step.row_count)
    while first < end:
        for row in range(first, end):
            place_row(step, layer, row, share[2])
        done += end - first
        first, end = take(share, phase + 2, step.row_count)
    complete(share, phase + 2, step.row_count, done)
    attend(step, layer, share, phase + 3, going)
    multiply_rows(
        step,
        share,
        phase + 4,
        step.inputs,
        attended,
        going.row_count,
        layer.output,
        layer.output_bias,
        step.hidden_size // TILE_COLUMNS,
        ADDED,
        going.residual,
        step.hidden_size * 4,
    )


@compiled
def _feed_forward(step: Any, layer: Any, share: Share, phase: int, going: Going) -> None:
    """A layer's second half: three phases."""
    residual, row_count = going.residual, going.row_count
    done = 0
    first, end = take(share, phase, row_count)
    while first < end:
        for row in range(first, end):
            normalize(step, residual, row, layer.feed_norm)
        done += end - first
        first, end = take(share, phase, row_count)
    complete(share, phase, row_count, done)
    multiply_rows(
        step,
        share,
        phase + 1,
        step.inputs,
        step.hidden_size,
        row_count,
        layer.gate_up,
        layer.gate_up_bias,
        step.feed_forward // LANES,
        GATED,
        step.gated,
        step.feed_forward * input_width_of(step),
    )
    multiply_rows(
        step,
        share,
        phase + 2,
        step.gated,
        step.feed_forward,
        row_count,
        layer.down,
        layer.down_bias,
        step.hidden_size // TILE_COLUMNS,
        ADDED,
        residual,
        step.hidden_size * 4,
    )


@compiled
def _walk(step: Any, layers: Any, thread: int, number: int) -> None:
    """A thread's part of a forward, by the forward's number."""
    share = (thread, step.thread_count, step.scratch + thread * step.scratch_bytes, step.team, number)
    if step.in_matrices:
        open_for_products()
    done = 0
    first, end = take(share, 0, step.row_count)
    while first < end:
        for row in range(first, end):
            embed(step, row, share[2])
        done += end - first
        first, end = take(share, 0, step.row_count)
    complete(share, 0, step.row_count, done)
    for index in range(step.layer_count):
        first = 1 + index * _PHASES_OF_A_LAYER
        going = going_on(step, index == step.layer_count - 1)
        _attention(step, layers[index], share, first, going)
        _feed_forward(step, layers[index], share, first + 5, going)
    residual = going_on(step, True).residual
    last = 1 + step.layer_count * _PHASES_OF_A_LAYER
    done = 0
    first, end = take(share, last, step.wanted_count)
    while first < end:
        for index in range(first, end):
            normalize(step, residual, index, step.final_norm)
        done += end - first
        first, end = take(share, last, step.wanted_count)
    complete(share, last, step.wanted_count, done)
    multiply_rows(
        step,
        share,
        last + 1,
        step.inputs,
        step.hidden_size,
        step.wanted_count,
        step.head,
        0,
        step.vocabulary_columns // TILE_COLUMNS,
        STORED,
        step.logits,
        step.vocabulary_columns * 4,
    )
    if step.in_matrices:
        close_matrices()


def _call_following(builder: Any, function: Any, place: Any, index: Any) -> Any:
    of = ir.FunctionType(INT64, [INT64, INT64])
    return builder.call(builder.inttoptr(function, of.as_pointer()), [place, index])


_follow = operation(types.int64, (types.int64,) * 3, _call_following)
"""Call what `following` gives."""


def phase_count(layer_count: int) -> int:
    """Return the number of phases in a forward."""
    return layer_count * _PHASES_OF_A_LAYER + 3


def _entry_of(made_of: str) -> Callable[..., Any]:
    def entry(place: Any, thread: Any) -> None:
        made_of  # noqa: B018 # in the closure, so that Numba tells one from another
        step = carray(pointer(place), (1,), STEP)[0]
        layers = carray(pointer(step.layers), (step.layer_count,), LAYER)
        number = begin(step.team) if thread == 0 else next_forward(step.team, 0)
        index = 0
        while number >= 0:
            _walk(step, layers, thread, number)
            if thread != 0:
                number = next_forward(step.team, number)
                continue
            finish(step.team, number)
            if step.run == 0 or not _follow(step.follow, place, index):
                return
            index += 1
            number = begin(step.team)

    return entry


@functools.cache
def compiled_walk() -> Walk:
    """Return the function that a team's threads call with a step's place and their number. A helper
    returns when its team ends. Compiling it for the first time on a machine takes twenty seconds or
    so."""
    return cast(Walk, keep(types.void(types.int64, types.int64), _entry_of(made_of())).ctypes)
