"""A step of an EAGLE-3 chain as one call of compiled code: rows that each have a token, a feature
and memory of their own for keys and values.

Between two operations of so small a layer Python would take as long as they do.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numba import carray, types

from slipstream.compilation import compile_shared
from slipstream.engine.compiled.keeping import keep, made_of, unit
from slipstream.engine.compiled.lanes import (
    LANES,
    add,
    compiled,
    exponential,
    fused,
    gated,
    load,
    multiply,
    pointer,
    read_integer,
    read_number,
    splat,
    store,
    subtract,
    sum_of,
    write_number,
)
from slipstream.engine.compiled.memory import aligned_zeros
from slipstream.engine.compiled.products import TILE_COLUMNS, TILE_ROWS
from slipstream.engine.compiled.tiles import call_tile
from slipstream.engine.heads.eagle3_layer import Eagle3Layer
from slipstream.engine.heads.matrix import TABLE, tile_place
from slipstream.sampling.kernel import Floats32, compiled_folder

MATRICES = ("attention", "output", "gates", "down", "head")
"""Matrices of the layer: queries, keys and values together, what follows attention, both halves of
the feed-forward's entrance, its exit, and the output."""

_SIZES = "row_count hidden_size head_count kv_head_count head_size feed_forward"
_FLAGS = "norm_before_residual norm_output"
_NORMS = {
    "input_norm": "layers.0.input_layernorm",
    "hidden_norm": "layers.0.hidden_norm",
    "query_norm": "layers.0.self_attn.q_norm",
    "key_norm": "layers.0.self_attn.k_norm",
    "feed_norm": "layers.0.post_attention_layernorm",
    "last_norm": "norm",
}
_ROWS = "tokens features turns inputs residual projected attended entered gates logits scores keys values counts rooms"

STEP = np.dtype(
    [(name, np.int64) for name in f"{_SIZES} {_FLAGS} embedding tile table {' '.join(_NORMS)} {_ROWS}".split()]
    + [(f"{name}_{part}", np.int64) for name in MATRICES for part in ("place", "column_bytes", "steps", "tiles")]
    + [("epsilon", np.float64), ("scaling", np.float64)]
)
"""Sizes, and the addresses of weights and of rows.

``turns`` are ``[rows, head size]``, cosines and then sines. ``keys`` and ``values`` hold an address
for each row, of ``[key heads, room, head size]``. The first ``counts`` positions are there, and the
step appends one.
"""

_SPARE = 256
"""Positions of scores that are reserved beyond those that a step needs."""

_ZERO, _LEAST = np.float32(0.0), np.float32(-np.inf)
_TILE_BYTES = 4 * TILE_COLUMNS


@dataclass(slots=True)
class Memory:
    """Keys and values of a row's text: each float32 ``[key heads, room, head size]`` in one
    piece."""

    keys: Floats32
    values: Floats32
    count: int
    """Positions that are there."""

    @property
    def told(self) -> tuple[int, int, int, int]:
        """The addresses and counts for compiled code."""
        return self.keys.ctypes.data, self.values.ctypes.data, self.count, self.keys.shape[1]


@compiled
def _normed(step: Any, source: int, weight: int, size: int, to: int) -> None:
    total = splat(_ZERO)
    for place in range(0, size, LANES):
        value = load(source + 4 * place)
        total = fused(value, value, total)
    factor = splat(np.float32(1.0 / math.sqrt(np.float64(sum_of(total)) / size + step.epsilon)))
    for place in range(0, size, LANES):
        store(to + 4 * place, multiply(multiply(load(source + 4 * place), factor), load(weight + 4 * place)))


@compiled
def _copy(source: int, size: int, to: int) -> None:
    for place in range(0, size, LANES):
        store(to + 4 * place, load(source + 4 * place))


@compiled
def _add_to(source: int, size: int, to: int) -> None:
    for place in range(0, size, LANES):
        store(to + 4 * place, add(load(to + 4 * place), load(source + 4 * place)))


@compiled
def _multiply(
    step: Any, place: int, column_bytes: int, steps: int, tiles: int, inputs: int, input_size: int, outputs: int
) -> None:
    """Rows of inputs, one after another, times a matrix: rows of whole tiles of outputs."""
    output_bytes = tiles * _TILE_BYTES
    for tile in range(tiles):
        for row in range(0, step.row_count, TILE_ROWS):
            call_tile(
                step.tile,
                min(TILE_ROWS, step.row_count - row),
                inputs + row * input_size * 4,
                input_size * 4,
                place + tile * 2 * column_bytes,
                column_bytes,
                steps,
                step.table,
                1,
                0,
                outputs + row * output_bytes + tile * _TILE_BYTES,
                output_bytes,
            )


@compiled
def _enter(step: Any, row: int) -> None:
    size = step.hidden_size
    inputs, feature = step.inputs + row * 2 * size * 4, step.features + row * size * 4
    _normed(step, step.embedding + read_integer(step.tokens + 8 * row) * size * 4, step.input_norm, size, inputs)
    _normed(step, feature, step.hidden_norm, size, inputs + size * 4)
    source = inputs + size * 4 if step.norm_before_residual else feature
    _copy(source, size, step.residual + row * size * 4)


@compiled
def _turn(step: Any, row: int, head: int, norm: int) -> None:
    """Norm a query or key ``[head size]`` in place, if the layer does that, and turn it."""
    size = step.head_size
    if norm:
        _normed(step, head, norm, size, head)
    half, cosines = size // 2, step.turns + row * size * 4
    for place in range(half):
        first, second = read_number(head + 4 * place), read_number(head + 4 * (half + place))
        cosine, sine = read_number(cosines + 4 * place), read_number(cosines + 4 * (half + place))
        write_number(head + 4 * place, first * cosine - second * sine)
        write_number(head + 4 * (half + place), second * cosine + first * sine)


@compiled
def _attend(step: Any, row: int, projected_bytes: int) -> None:
    size, head_bytes = step.head_size, step.head_size * 4
    source = step.projected + row * projected_bytes
    count, room = read_integer(step.counts + 8 * row), read_integer(step.rooms + 8 * row)
    keys, values = read_integer(step.keys + 8 * row), read_integer(step.values + 8 * row)
    for head in range(step.kv_head_count):
        key = source + (step.head_count + head) * head_bytes
        _turn(step, row, key, step.key_norm)
        slot = (head * room + count) * head_bytes
        _copy(key, size, keys + slot)
        _copy(key + step.kv_head_count * head_bytes, size, values + slot)
    shared = step.head_count // step.kv_head_count
    for head in range(step.head_count):
        query = source + head * head_bytes
        _turn(step, row, query, step.query_norm)
        start = head // shared * room * head_bytes
        to = step.attended + (row * step.head_count + head) * head_bytes
        _see(step, query, keys + start, values + start, count + 1, to)


@compiled
def _see(step: Any, query: int, keys: int, values: int, count: int, to: int) -> None:
    """Write what a query ``[head size]`` sees of so many positions."""
    size, highest = step.head_size, _LEAST
    for position in range(count):
        total = splat(_ZERO)
        for place in range(0, size, LANES):
            total = fused(load(query + 4 * place), load(keys + 4 * (position * size + place)), total)
        score = np.float32(sum_of(total) * np.float32(step.scaling))
        highest = max(highest, score)
        write_number(step.scores + 4 * position, score)
    for place in range(0, size, LANES):
        store(to + 4 * place, splat(_ZERO))
    weights = splat(_ZERO)
    for position in range(count):
        weight = exponential(subtract(splat(read_number(step.scores + 4 * position)), splat(highest)))
        weights = add(weights, weight)
        for place in range(0, size, LANES):
            value = load(values + 4 * (position * size + place))
            store(to + 4 * place, fused(weight, value, load(to + 4 * place)))
    share = splat(np.float32(1.0) / (sum_of(weights) / np.float32(LANES)))
    for place in range(0, size, LANES):
        store(to + 4 * place, multiply(load(to + 4 * place), share))


@compiled
def _leave(step: Any) -> None:
    """From what rows attended to, in ``attended``, to their logits and the next features."""
    size, feed = step.hidden_size, step.feed_forward
    attended = step.head_count * step.head_size
    hidden_bytes, feed_bytes = step.output_tiles * _TILE_BYTES, step.gates_tiles * _TILE_BYTES
    _multiply(
        step,
        step.output_place,
        step.output_column_bytes,
        step.output_steps,
        step.output_tiles,
        step.attended,
        attended,
        step.projected,
    )
    for row in range(step.row_count):
        residual = step.residual + row * size * 4
        _add_to(step.projected + row * hidden_bytes, size, residual)
        _normed(step, residual, step.feed_norm, size, step.entered + row * size * 4)
    _multiply(
        step,
        step.gates_place,
        step.gates_column_bytes,
        step.gates_steps,
        step.gates_tiles,
        step.entered,
        size,
        step.gates,
    )
    for row in range(step.row_count):
        gates, to = step.gates + row * feed_bytes, step.inputs + row * feed * 4
        for place in range(0, feed, LANES):
            store(to + 4 * place, gated(load(gates + 4 * place), load(gates + 4 * (feed + place))))
    _multiply(
        step,
        step.down_place,
        step.down_column_bytes,
        step.down_steps,
        step.down_tiles,
        step.inputs,
        feed,
        step.projected,
    )
    for row in range(step.row_count):
        residual, feature = step.residual + row * size * 4, step.features + row * size * 4
        _add_to(step.projected + row * step.down_tiles * _TILE_BYTES, size, residual)
        _normed(step, residual, step.last_norm, size, step.entered + row * size * 4)
        _copy(step.entered + row * size * 4 if step.norm_output else residual, size, feature)
    _multiply(
        step, step.head_place, step.head_column_bytes, step.head_steps, step.head_tiles, step.entered, size, step.logits
    )


def _entry_of(made_of: str) -> Callable[..., Any]:
    def entry(place: Any) -> None:
        made_of  # noqa: B018 # in the closure, so that Numba tells one from another
        step = carray(pointer(place), (1,), STEP)[0]
        for row in range(step.row_count):
            _enter(step, row)
        _multiply(
            step,
            step.attention_place,
            step.attention_column_bytes,
            step.attention_steps,
            step.attention_tiles,
            step.inputs,
            2 * step.hidden_size,
            step.projected,
        )
        for row in range(step.row_count):
            _attend(step, row, step.attention_tiles * _TILE_BYTES)
        _leave(step)

    return entry


class Stepper:
    """Steps of a layer, and the memory that they compute in."""

    def __init__(self, layer: Eagle3Layer) -> None:
        """The first one on a machine compiles for some seconds."""
        compile_shared([unit("eagle3", compiled_step)], compiled_folder())
        config, self._layer = layer.config, layer
        self._step = np.zeros((), STEP)
        self._kept: dict[str, np.ndarray] = {}
        self._row_count = self._longest = 0
        sizes = (config.hidden_size, config.head_count, config.kv_head_count, config.head_size, config.feed_forward)
        for name, size in zip(_SIZES.split()[1:], sizes, strict=True):
            self._step[name] = size
        for name in _FLAGS.split():
            self._step[name] = getattr(config, name)
        self._step["epsilon"], self._step["scaling"] = config.epsilon, config.head_size**-0.5
        self._step["embedding"], self._step["tile"] = layer.embedding.ctypes.data, tile_place()
        self._step["table"] = TABLE.ctypes.data
        for name, stored in _NORMS.items():
            weight = layer.weights.get(f"{stored}.weight")
            self._step[name] = 0 if weight is None else weight.ctypes.data
        for name in MATRICES:
            for part, value in layer.matrices[name].told._asdict().items():
                self._step[f"{name}_{part}"] = value

    def step(self, tokens: Sequence[int], features: Floats32, turns: Floats32, memory: Sequence[Memory]) -> Floats32:
        """Return the logits ``[rows, draft vocabulary]`` of rows with these tokens, ``features``
        ``[rows, hidden]`` and ``turns`` ``[rows, head size]``, cosines and then sines. Features are
        replaced by the next ones, and memory grows by a position."""
        step, count = self._step, len(tokens)
        self._make_room(count, max([each.count for each in memory]) + 1)
        step["row_count"] = count
        integers = np.array([tokens, *zip(*[each.told for each in memory], strict=True)], dtype=np.int64)
        for name, row in zip(("tokens", "keys", "values", "counts", "rooms"), integers, strict=True):
            step[name] = row.ctypes.data
        step["features"], step["turns"] = features.ctypes.data, turns.ctypes.data
        compiled_step()(step.ctypes.data)
        for each in memory:
            each.count += 1
        logits: Floats32 = self._kept["logits"].reshape(self._row_count, -1)[:count]
        return logits[:, : self._layer.config.draft_vocabulary_size]

    def _make_room(self, row_count: int, longest: int) -> None:
        if row_count <= self._row_count and longest <= self._longest:
            return
        self._row_count, self._longest = max(row_count, self._row_count), max(longest + _SPARE, self._longest)
        config, matrices = self._layer.config, self._layer.matrices
        columns = {name: matrices[name].told.tiles * TILE_COLUMNS for name in MATRICES}
        attended = config.head_count * config.head_size
        sizes = {
            "inputs": max(2 * config.hidden_size, config.feed_forward),
            "residual": config.hidden_size,
            "projected": max(columns["attention"], columns["output"], columns["down"]),
            "attended": attended,
            "entered": config.hidden_size,
            "gates": columns["gates"],
            "logits": columns["head"],
        }
        self._kept = {name: aligned_zeros([self._row_count * size], np.float32) for name, size in sizes.items()}
        self._kept["scores"] = aligned_zeros([self._longest], np.float32)
        for name, memory in self._kept.items():
            self._step[name] = memory.ctypes.data


@functools.cache
def compiled_step() -> Callable[[int], None]:
    """Return the function that computes the step at an address."""
    kept = keep(types.void(types.int64), _entry_of(made_of()))
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64)(kept.address)
    function.kept = kept  # type: ignore[attr-defined] # as long as it may be called
    return cast(Callable[[int], None], function)
