"""The phases of a forward, for compiled code: what is done to a row, to a head, to a tile of
outputs.

**A row's bits depend on its own sequence alone**, by construction and not by padding: each number
that is computed is one chain of operations, in an order that only the model's shape decides.
Sixteen lanes are sixteen outputs and never parts of one sum, but where a row is summed over (norms,
softmax): lane by lane then, and the lanes as a tree. How many rows are computed beside it, in which
thread, and in how many pieces changes nothing of a row.

Keys of a block of sixteen tokens lie like a matrix whose outputs are the tokens, values like one
whose inputs are: attention is products too (`slipstream.engine.compiled.products`). A key that a
query does not see has the weight 0, which changes no sum.

``share`` is what a thread takes part with, and a phase's number is its own among those of a forward
(`team`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import carray

from slipstream.engine.compiled.block_types import BLOCK
from slipstream.engine.compiled.lanes import (
    LANES,
    add,
    between,
    compiled,
    exponential,
    fused,
    gated,
    larger,
    largest_of,
    load,
    load_float16,
    load_halves,
    multiply,
    pointer,
    read_integer,
    read_number,
    rounded_to_half,
    splat,
    store,
    store_halves,
    subtract,
    sum_of,
    write_half,
    write_number,
)
from slipstream.engine.compiled.matrices import MOST_ROWS, open_for_attention, open_for_products
from slipstream.engine.compiled.products import (
    TILE_COLUMNS,
    TILE_ROWS,
    WIDENED,
)
from slipstream.engine.compiled.quantised import INPUT_BYTES, quantise
from slipstream.engine.compiled.records import MATRIX, MATRIX_PARTS
from slipstream.engine.compiled.team import Share, complete, take
from slipstream.engine.compiled.tiles import call_tile

STORED, ADDED, GATED = 0, 1, 2
"""Uses of a product: store it, add it to what is there, or take it as a gate and what goes through
it."""

_TILE_BYTES = 4 * TILE_COLUMNS
_ZERO, _LEAST = np.float32(0.0), np.float32(-np.inf)


@compiled
def _width_of(step: Any) -> int:
    """Bytes of a weight, or of a number of a key or value."""
    return 2 if step.bf16 else 4


@compiled
def input_width_of(step: Any) -> int:
    """Bytes of a number that weights, keys or values are multiplied by."""
    return 2 if step.bf16 and not WIDENED else 4


@compiled
def _put(step: Any, to: int, place: int, value: Any) -> None:
    """Sixteen numbers from a ``place`` on, as inputs of products."""
    if step.bf16 and WIDENED:
        store(to + 4 * place, rounded_to_half(value))
    elif step.bf16:
        store_halves(to + 2 * place, value)
    else:
        store(to + 4 * place, value)


@compiled
def _embed_quantised(step: Any, token: int, to: int, scratch: int) -> None:
    """A token's weights out of blocks of sixteen tokens."""
    matrix = carray(pointer(step.embedding_blocks), (MATRIX_PARTS,), MATRIX)[0]
    size, group_bytes = step.hidden_size // matrix.steps, matrix.column_bytes // matrix.steps
    source = matrix.place + token // LANES * matrix.column_bytes
    for group in range(matrix.steps):
        call_tile(matrix.tile, 0, 0, 0, source + group * group_bytes, 0, 1, step.origin, 1, 0, scratch, 0)
        for place in range(size):
            weight = read_number(scratch + 4 * (place * LANES + token % LANES))
            write_number(to + 4 * (group * size + place), weight)


@compiled
def _embed_numbers(step: Any, token: int, to: int) -> None:
    """A token's row of float32, bfloat16 or float16."""
    size, width = step.hidden_size, step.embedding_width
    source = step.embedding + token * size * width
    for place in range(0, size, LANES):
        if width == 4:
            store(to + 4 * place, load(source + 4 * place))
        elif step.embedding_is_float16:
            store(to + 4 * place, load_float16(source + 2 * place))
        else:
            store(to + 4 * place, load_halves(source + 2 * place))


@compiled
def embed(step: Any, row: int, scratch: int) -> None:
    """A token's embedding, and how far its position turns."""
    token, to = read_integer(step.ids + 8 * row), step.residual + row * step.hidden_size * 4
    if step.embedding:
        _embed_numbers(step, token, to)
    else:
        _embed_quantised(step, token, to, scratch)
    half = step.head_size // 2
    cosines = step.rotations + row * step.head_size * 4
    position = np.float32(read_integer(step.positions + 8 * row))
    for place in range(half):
        angle = np.float64(
            np.float32(position * read_number(step.frequencies + 4 * place))
        )  # rounded, as it was trained
        write_number(cosines + 4 * place, np.float32(math.cos(angle) * step.rotation_scale))
        write_number(cosines + 4 * (half + place), np.float32(math.sin(angle) * step.rotation_scale))


@compiled
def _norm_factor(step: Any, source: int, size: int) -> np.float32:
    """One over the root of the mean square."""
    total = splat(_ZERO)
    for place in range(0, size, LANES):
        value = load(source + 4 * place)
        total = fused(value, value, total)
    return np.float32(1.0 / math.sqrt(np.float64(sum_of(total)) / size + step.epsilon))


@compiled
def normalize(step: Any, residual: int, row: int, weight: int) -> None:
    """A row's residual, normalised, as its inputs."""
    size = step.hidden_size
    source, to = residual + row * size * 4, step.inputs + row * size * input_width_of(step)
    factor = splat(_norm_factor(step, source, size))
    for place in range(0, size, LANES):
        value = multiply(multiply(load(source + 4 * place), factor), load(weight + 4 * place))
        _put(step, to, place, value)


@compiled
def keep_input(step: Any, layer: Any, row: int) -> None:
    """Keep a row's residual, the input of a layer, for heads."""
    offset = row * step.hidden_size * 4
    for place in range(0, step.hidden_size, LANES):
        store(layer.kept_input + offset + 4 * place, load(step.residual + offset + 4 * place))


@compiled
def _rows_at_once(step: Any, rows: int) -> int:
    """Return the rows of a tile. Nine rows are five and four: one alone would wait for its own
    sums. The matrix unit takes as many as it can."""
    if step.in_matrices:
        return MOST_ROWS
    passes = max(1, (rows + TILE_ROWS - 1) // TILE_ROWS)
    return max(1, (rows + passes - 1) // passes)


@compiled
def multiply_rows(
    step: Any,
    share: Share,
    phase: int,
    inputs: int,
    input_size: int,
    rows: int,
    matrix: int,
    bias: int,
    tiles: int,
    kind: int,
    outputs: int,
    output_bytes: int,
) -> None:
    """A product of ``rows`` rows: a phase, whose units are tiles; ``kind`` says what becomes of
    it. Every thread quantises the rows for itself: that takes less than to wait for one another."""
    parts = carray(pointer(matrix), (MATRIX_PARTS,), MATRIX)
    scratch, quantised = share[2], share[2] + rows * _TILE_BYTES
    row_bytes = input_size // BLOCK * INPUT_BYTES
    at_once, is_ready = _rows_at_once(step, rows), False
    done = 0
    first, end = take(share, phase, tiles)
    while first < end:
        for tile in range(first, end):
            index = 0
            while parts[index].end <= tile:
                index += 1
            part = parts[index]
            if part.is_quantised and not is_ready:
                for row in range(rows):
                    quantise(inputs + row * input_size * 4, input_size, quantised + row * row_bytes)
                is_ready = True
            source = quantised if part.is_quantised else inputs
            weights = part.place + tile * 2 * part.column_bytes
            for row in range(0, rows, at_once):
                call_tile(
                    part.tile,
                    min(at_once, rows - row),
                    source + row * part.row_bytes,
                    part.row_bytes,
                    weights,
                    part.column_bytes,
                    part.steps,
                    step.origin,
                    1,
                    0,
                    scratch + row * _TILE_BYTES,
                    _TILE_BYTES,
                )
            _finish(step, scratch, rows, tile, bias, kind, outputs, output_bytes)
        done += end - first
        first, end = take(share, phase, tiles)
    complete(share, phase, tiles, done)


@compiled
def _finish(step: Any, sums: int, rows: int, tile: int, bias: int, kind: int, outputs: int, output_bytes: int) -> None:
    """Store a tile's sums, add them, or pass them through a gate."""
    for row in range(rows):
        first, second = load(sums + row * _TILE_BYTES), load(sums + row * _TILE_BYTES + 4 * LANES)
        if bias:
            first = add(first, load(bias + tile * _TILE_BYTES))
            second = add(second, load(bias + tile * _TILE_BYTES + 4 * LANES))
        to = outputs + row * output_bytes
        if kind == GATED:
            _put(step, to, tile * LANES, gated(first, second))
            continue
        to += tile * _TILE_BYTES
        if kind == ADDED:
            first, second = add(load(to), first), add(load(to + 4 * LANES), second)
        store(to, first)
        store(to + 4 * LANES, second)


@compiled
def _turn(step: Any, row: int, source: int, norm: int, to: int) -> None:
    """A head's query or key ``[head size]``, normalised if the model does that, turned by its
    position: as float32."""
    size, half = step.head_size, step.head_size // 2
    cosines = step.rotations + row * size * 4
    factor = splat(_norm_factor(step, source, size) if norm else np.float32(1.0))
    for place in range(0, half, LANES):
        first, second = load(source + 4 * place), load(source + 4 * (half + place))
        if norm:
            first = multiply(multiply(first, factor), load(norm + 4 * place))
            second = multiply(multiply(second, factor), load(norm + 4 * (half + place)))
        cosine, sine = load(cosines + 4 * place), load(cosines + 4 * (half + place))
        store(to + 4 * place, subtract(multiply(first, cosine), multiply(second, sine)))
        store(to + 4 * (half + place), add(multiply(second, cosine), multiply(first, sine)))


@compiled
def _keep(step: Any, layer: Any, row: int, head: int, key: int, value: int) -> None:
    """Write a token's key and value of a head ``[head size]`` to their slot.

    ::

        bfloat16   keys     [block][head][size / 2][16 tokens][2]
                   values   [block][head][size / 16][16 tokens / 2][16][2]
        float32    keys     [block][head][size][16 tokens]
                   values   [block][head][size / 16][16 tokens][16]
    """
    size, width = step.head_size, _width_of(step)
    slot = read_integer(step.slots + 8 * row)
    block, lane = slot // LANES, slot % LANES
    offset = (block * step.kv_head_count + head) * size * LANES * width
    keys, values = layer.keys + offset, layer.values + offset
    column_bytes = LANES * LANES * width
    for place in range(size):
        column, output = place // LANES, place % LANES
        if step.bf16:
            write_half(keys + (place // 2 * LANES + lane) * 4 + place % 2 * 2, read_number(key + 4 * place))
            to = values + column * column_bytes + (lane // 2 * LANES + output) * 4 + lane % 2 * 2
            write_half(to, read_number(value + 4 * place))
        else:
            write_number(keys + (place * LANES + lane) * 4, read_number(key + 4 * place))
            to = values + column * column_bytes + (lane * LANES + output) * 4
            write_number(to, read_number(value + 4 * place))


@compiled
def place_row(step: Any, layer: Any, row: int, scratch: int) -> None:
    """Turn a row's queries and keys, and keep its keys and values. The queries of a key head lie
    together, row after row."""
    size = step.head_size
    shared = step.head_count // step.kv_head_count
    head_bytes = size * 4
    source = step.projected + row * (step.head_count + 2 * step.kv_head_count) * head_bytes
    for head in range(step.head_count):
        _turn(step, row, source + head * head_bytes, layer.query_norm, scratch)
        index = (head // shared * step.row_count + row) * shared + head % shared
        to = step.queries + index * size * input_width_of(step)
        for place in range(0, size, LANES):
            _put(step, to, place, load(scratch + 4 * place))
    for head in range(step.kv_head_count):
        key = source + (step.head_count + head) * head_bytes
        _turn(step, row, key, layer.key_norm, scratch)
        _keep(step, layer, row, head, scratch, key + step.kv_head_count * head_bytes)


class Going(NamedTuple):
    """The rows that go on once keys and values are there. All but the two counts are addresses."""

    residual: int
    row_count: int
    part_count: int
    part_rows: int
    part_counts: int
    part_tables: int
    part_places: int
    """Places of the parts' first rows among those that go on."""


@compiled
def going_on(step: Any, is_last: bool) -> Going:
    """All rows; behind the last layer's keys and values those whose logits are wanted."""
    if not is_last:
        return Going(
            step.residual,
            step.row_count,
            step.part_count,
            step.part_rows,
            step.part_counts,
            step.part_tables,
            step.part_rows,
        )
    residual = step.residual if step.wanted_count == step.row_count else step.wanted_residual
    return Going(
        residual,
        step.wanted_count,
        step.wanted_part_count,
        step.wanted_part_rows,
        step.wanted_part_counts,
        step.wanted_part_tables,
        step.wanted_part_places,
    )


@compiled
def _copy_residuals(step: Any, first_row: int, count: int, to: int) -> None:
    source = step.residual + first_row * step.hidden_size * 4
    for place in range(0, count * step.hidden_size, LANES):
        store(to + 4 * place, load(source + 4 * place))


@compiled
def attend(step: Any, layer: Any, share: Share, phase: int, going: Going) -> None:
    """Compute what rows that go on see: a phase whose units are parts and heads. Their residuals
    are gathered."""
    shared, scratch = step.head_count // step.kv_head_count, share[2]
    part_count = going.part_count
    if step.in_matrices:
        open_for_attention()
    done = 0
    first, end = take(share, phase, part_count * step.kv_head_count)
    while first < end:
        for index in range(first, end):
            part, head = index % part_count, index // part_count  # later parts see more keys
            first_row, rows = read_integer(going.part_rows + 8 * part), read_integer(going.part_counts + 8 * part)
            table, place = read_integer(going.part_tables + 8 * part), read_integer(going.part_places + 8 * part)
            if head == 0 and going.residual != step.residual:
                _copy_residuals(step, first_row, rows, going.residual + place * step.hidden_size * 4)
            for query in range(0, rows * shared, step.most_queries):
                queries = min(step.most_queries, rows * shared - query)
                _attend(step, layer, table, (first_row, place), head, query, queries, scratch)
        done += end - first
        first, end = take(share, phase, part_count * step.kv_head_count)
    if step.in_matrices:
        open_for_products()
    complete(share, phase, part_count * step.kv_head_count, done)


@compiled
def _first_key(layer: Any, position: int) -> int:
    """Return the first key that a query sees."""
    return max(0, position + 1 - layer.window) if layer.window else 0


@compiled
def _attend(
    step: Any,
    layer: Any,
    table: int,
    part: tuple[int, int],
    head: int,
    first_query: int,
    queries: int,
    scratch: int,
) -> None:
    """Compute what up to ``most_queries`` queries of a key head see. ``first_query`` is counted
    from those of a part's first row, which comes as a row and as a place among those that go on."""
    first_row, first_place = part
    size, width, shared = step.head_size, input_width_of(step), step.head_count // step.kv_head_count
    scores = scratch
    weights = scores + step.most_queries * step.longest * 4
    seen = weights + step.most_queries * step.longest * 4
    shares = seen + step.most_queries * size * 4
    first = read_integer(step.positions + 8 * (first_row + first_query // shared))
    last = read_integer(step.positions + 8 * (first_row + (first_query + queries - 1) // shared))
    blocks = _first_key(layer, first) // LANES, last // LANES + 1
    head_bytes = size * LANES * _width_of(step)
    block_bytes = step.kv_head_count * head_bytes
    asked = step.queries + ((head * step.row_count + first_row) * shared + first_query) * size * width
    _score(step, layer.keys + head * head_bytes, block_bytes, table, blocks, asked, queries, scores)
    for query in range(queries):
        position = read_integer(step.positions + 8 * (first_row + (first_query + query) // shared))
        keys = _first_key(layer, position), position + 1
        row_scores, row_weights = scores + query * step.longest * 4, weights + query * step.longest * width
        write_number(shares + 4 * query, np.float32(1.0) / _weigh(step, row_scores, row_weights, keys, blocks))
    _gather(step, layer.values + head * head_bytes, block_bytes, table, blocks, weights, queries, seen)
    for query in range(queries):
        row, query_head = first_place + (first_query + query) // shared, head * shared + (first_query + query) % shared
        its_share = splat(read_number(shares + 4 * query))
        to = step.inputs + (row * step.head_count + query_head) * size * width
        for place in range(0, size, LANES):
            _put(step, to, place, multiply(load(seen + (query * size + place) * 4), its_share))


@compiled
def _score(
    step: Any, keys: int, block_bytes: int, table: int, blocks: tuple[int, int], asked: int, queries: int, scores: int
) -> None:
    """Compute the scores of queries for the keys of ``blocks``, the first and the one after the
    last."""
    row_bytes, steps = step.head_size * input_width_of(step), step.head_size * _width_of(step) // 4
    for block in range(blocks[0], blocks[1]):
        place, to = table + 8 * block, scores + 4 * block * LANES
        call_tile(step.scores, queries, asked, row_bytes, keys, 0, steps, place, 1, block_bytes, to, step.longest * 4)


@compiled
def _weigh(step: Any, scores: int, weights: int, keys: tuple[int, int], blocks: tuple[int, int]) -> np.float32:
    """A query's scores to the weights of the ``keys`` that it sees, the first and the one after the
    last, not yet divided by their sum, which is returned; the other keys of the blocks get none."""
    top = splat(_LEAST)
    for block in range(blocks[0], blocks[1]):
        place = block * LANES
        seen = between(load(scores + 4 * place), keys[0] - place, keys[1] - place, _LEAST)
        store(scores + 4 * place, seen)
        top = larger(top, seen)
    highest, scale = splat(largest_of(top)), splat(np.float32(step.attention_scale))
    total = splat(_ZERO)
    for block in range(blocks[0], blocks[1]):
        place = block * LANES
        weight = exponential(multiply(subtract(load(scores + 4 * place), highest), scale))
        _put(step, weights, place, weight)
        total = add(total, weight)
    return np.float32(sum_of(total))


@compiled
def _gather(
    step: Any, values: int, block_bytes: int, table: int, blocks: tuple[int, int], weights: int, queries: int, seen: int
) -> None:
    """The sums of the values of ``blocks`` by their weights."""
    width, head_bytes = _width_of(step), 4 * step.head_size
    column_bytes = LANES * LANES * width
    steps, row_bytes, count = LANES * width // 4, step.longest * input_width_of(step), blocks[1] - blocks[0]
    source, places = weights + blocks[0] * LANES * input_width_of(step), table + 8 * blocks[0]
    for column in range(0, step.head_size // LANES, 2):
        matrix, to = values + column * column_bytes, seen + column * 4 * LANES
        call_tile(
            step.values,
            queries,
            source,
            row_bytes,
            matrix,
            column_bytes,
            steps,
            places,
            count,
            block_bytes,
            to,
            head_bytes,
        )
