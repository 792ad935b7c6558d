"""Paged attention on CUDA, exact by construction: a row's keys are read in one order, regardless of
what runs beside it.

A program computes one key head for some rows of one sequence and a chunk of its keys. It reads keys
and values in place from their pages, in tiles from the chunk's first key on, with a running softmax
(Milakov and Gimelshein 2018). Then the chunks are joined in their order. A tile or chunk that a row
does not see multiplies its sums by exactly one and adds exactly nothing. The keys' positions alone
decide where chunks begin (`slipstream.engine.torch.cuda.step`). So a row's bits depend on its own
sequence alone: not on the rows that share its program, on other sequences, or on the size of the
memory.
"""

from subprocess import CalledProcessError

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.torch.attention import Kernels, Scoring
from slipstream.engine.torch.cuda.step import CHUNK, LONG_AFTER, LONG_CHUNK, PIECE, QUERIES, Step
from slipstream.engine.torch.kv_memory import KvMemory, LayerShape

_SMALL_HEAD = 64
"""Largest head size with twice as many keys in a tile."""

_STAGES = {torch.bfloat16: 3, torch.float32: 1}
"""Tiles in progress: one is multiplied, the next one is loaded, and the pages of the one after it
are looked up. Tiles of float32 fill the memory that a program shares."""

_MOST_TILE = 64
"""Most rows of a tile, unless more heads share a key head. A program's shared memory holds the
whole tile."""

_PRECISION = "tf32x3"
"""Precision of float32 products: three products of the matrix units, whose errors add up to about
one float32 rounding. The plain units take thirty times as long."""

_JOINED_HEADS = 8
"""Heads of a row whose chunks one program joins."""

_PROGRAMS = 1024
"""Programs that share the pieces of a step. A program with two pieces takes twice as long as
others, and a program without any still costs its start (docs/history/gpu.md)."""

PIECE_INTEGERS, SHORT_CHUNKS = tl.constexpr(PIECE), tl.constexpr(LONG_AFTER)
SHORT_KEYS, LONG_KEYS = tl.constexpr(CHUNK), tl.constexpr(LONG_CHUNK)

_LEAST_TILE = 16
"""Fewest rows, and numbers of a head, of a matrix instruction."""


def compile_launcher() -> None:
    """Compile the code that launches kernels, on a machine's first start. UnsupportedModelError
    without a C compiler."""
    try:
        triton.runtime.driver.active.get_current_target()
    except (RuntimeError, OSError, CalledProcessError) as error:
        raise UnsupportedModelError(
            "attention on CUDA needs a C compiler (gcc, clang or what CC names) and Python's headers, once on each "
            f"machine: {error}"
        ) from error


def _write_rows(step: Step, memory: KvMemory, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    shape = memory.layers[layer]
    there = memory.keys[layer]
    keys, values = _packed(keys), _packed(values)
    _write[(step.row_count,)](
        keys,
        values,
        there,
        memory.values[layer],
        step.slots,
        key_row_stride=keys.stride(1),
        key_head_stride=keys.stride(0),
        value_row_stride=values.stride(1),
        value_head_stride=values.stride(0),
        slots=there.shape[1] * there.shape[2],
        heads=shape.head_count,
        lanes=triton.next_power_of_2(shape.head_count),
        size=shape.key_size,
        dims=triton.next_power_of_2(shape.key_size),
        value_size=shape.value_size,
        value_dims=triton.next_power_of_2(shape.value_size),
    )


def _attend_rows(
    step: Step,
    memory: KvMemory,
    layer: int,
    rows: torch.Tensor,
    scoring: Scoring,
) -> torch.Tensor:
    """Attend each row to the keys of its sequence that it sees. Padding gets zeros."""
    shape = memory.layers[layer]
    keys, values = memory.keys[layer], memory.values[layer]
    rows = _packed(rows)
    output = rows.new_zeros(rows.shape[0], rows.shape[1], shape.value_size)
    part = max(1, min(QUERIES, _MOST_TILE // shape.queries_per_key))
    parts = triton.cdiv(QUERIES, part)
    groups = min(step.row_count * step.most_chunks, max(1, _PROGRAMS // (shape.head_count * parts)))
    partial = step.partial(rows.shape[1], shape.value_size)
    sinks = output if scoring.sinks is None else scoring.sinks.float().contiguous()
    has_sinks = scoring.sinks is not None
    try:
        _attend[groups, shape.head_count, parts](
            rows,
            keys,
            values,
            output,
            *partial,
            step.pieces,
            step.piece_count,
            step.tables,
            sinks,
            scoring.scaling,
            scoring.softcap or 0.0,
            row_stride=rows.stride(0),
            head_stride=rows.stride(1),
            slots=keys.shape[1] * keys.shape[2],
            most_chunks=step.most_chunks,
            groups=groups,
            page_size=keys.shape[2],
            window=scoring.sight.window,
            attention_chunk=scoring.sight.chunk,
            capped=scoring.softcap is not None,
            has_sinks=has_sinks,
            part=part,
            repeats=shape.queries_per_key,
            lanes=max(_LEAST_TILE, triton.next_power_of_2(part * shape.queries_per_key)),
            key_count=key_count(shape, rows.dtype),
            size=shape.key_size,
            dims=max(_LEAST_TILE, triton.next_power_of_2(shape.key_size)),
            value_size=shape.value_size,
            value_dims=max(_LEAST_TILE, triton.next_power_of_2(shape.value_size)),
            precision=_PRECISION,
            num_stages=_STAGES[rows.dtype],
        )
    except OutOfResources as error:
        raise UnsupportedModelError(
            f"attention with heads of {shape.key_size} in {str(rows.dtype).removeprefix('torch.')} does not fit "
            f"{torch.cuda.get_device_name(rows.device)}: {error}"
        ) from error
    if step.most_chunks > 1:
        heads = rows.shape[1]
        _join[step.row_count, triton.cdiv(heads, _JOINED_HEADS)](
            output,
            *partial,
            step.chunk_counts,
            sinks,
            step.most_chunks,
            heads,
            has_sinks=has_sinks,
            at_once=_JOINED_HEADS,
            size=shape.value_size,
            dims=triton.next_power_of_2(shape.value_size),
        )
    return output


def key_count(shape: LayerShape, dtype: torch.dtype) -> int:
    """Return the number of keys in a tile. A program's shared memory holds some tiles."""
    if dtype == torch.float32:
        return 32
    return 128 if max(shape.key_size, shape.value_size) <= _SMALL_HEAD else 64


def _packed(heads: torch.Tensor) -> torch.Tensor:
    """Return the heads with each head's numbers next to each other."""
    return heads if heads.stride(-1) == 1 else heads.contiguous()


PAGED = Kernels(_write_rows, _attend_rows)
"""Attention over pages, read in place."""

_STRIDES = ["key_row_stride", "key_head_stride", "value_row_stride", "value_head_stride", "slots"]


@triton.jit(do_not_specialize=_STRIDES)
def _write(
    keys,
    values,
    key_memory,
    value_memory,
    places,
    key_row_stride,
    key_head_stride,
    value_row_stride,
    value_head_stride,
    slots,
    heads: tl.constexpr,
    lanes: tl.constexpr,
    size: tl.constexpr,
    dims: tl.constexpr,
    value_size: tl.constexpr,
    value_dims: tl.constexpr,
):
    """Write a row's keys and values."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, lanes).to(tl.int64)[:, None]
    slot = head * slots + tl.load(places + row)
    dim = tl.arange(0, dims)[None, :]
    is_real = (head < heads) & (dim < size)
    key = tl.load(keys + row * key_row_stride + head * key_head_stride + dim, mask=is_real)
    tl.store(key_memory + slot * size + dim, key, mask=is_real)
    dim = tl.arange(0, value_dims)[None, :]
    is_real = (head < heads) & (dim < value_size)
    value = tl.load(values + row * value_row_stride + head * value_head_stride + dim, mask=is_real)
    tl.store(value_memory + slot * value_size + dim, value, mask=is_real)


# Triton would otherwise compile for the values of these integers, and another compilation may round
# differently.
@triton.jit(do_not_specialize=["row_stride", "head_stride", "slots", "scaling", "softcap", "most_chunks", "groups"])
def _attend(
    rows,
    keys,
    values,
    output,
    partial_values,
    partial_tops,
    partial_weights,
    pieces,
    piece_count,
    tables,
    sinks,
    scaling,
    softcap,
    row_stride,
    head_stride,
    slots,
    most_chunks,
    groups,
    page_size: tl.constexpr,
    window: tl.constexpr,
    attention_chunk: tl.constexpr,
    capped: tl.constexpr,
    has_sinks: tl.constexpr,
    part: tl.constexpr,
    repeats: tl.constexpr,
    lanes: tl.constexpr,
    key_count: tl.constexpr,
    size: tl.constexpr,
    dims: tl.constexpr,
    value_size: tl.constexpr,
    value_dims: tl.constexpr,
    precision: tl.constexpr,
):
    """Attend for every ``groups``-th piece and one key head; see `Step.pieces` and
    `Step.tables`."""
    head = tl.program_id(1)
    skipped = tl.program_id(2) * part
    for piece in range(tl.program_id(0), tl.load(piece_count), groups):
        told = pieces + piece * PIECE_INTEGERS
        count = tl.load(told + 1) - skipped
        if count > 0:
            first_row = tl.load(told) + skipped
            first_position = tl.load(told + 2) + skipped
            table = tables + tl.load(told + 3)
            chunk = tl.load(told + 4)
            # Query heads that share a key head become more queries of it.
            lane = tl.arange(0, lanes)
            query = lane // repeats  # beyond `part` in lanes that are there for a power of two
            is_real = (query < count) & (query < part)
            row = first_row + query
            query_head = head * repeats + lane % repeats
            position = first_position + query
            dim = tl.arange(0, dims)
            value_dim = tl.arange(0, value_dims)
            asked = tl.load(
                rows + (row * row_stride + query_head * head_stride)[:, None] + dim[None, :],
                mask=is_real[:, None] & (dim < size)[None, :],
                other=0.0,
            )
            last = first_position + tl.minimum(count, part) - 1
            start = _chunk_start(chunk)
            end = tl.minimum(_chunk_start(chunk + 1), last + 1)
            if window > 0:
                start = tl.maximum(start, tl.maximum(first_position - window + 1, 0) // key_count * key_count)
            if attention_chunk > 0:
                first_seen = first_position // attention_chunk * attention_chunk
                start = tl.maximum(start, first_seen // key_count * key_count)
            total, top, weight_sum = _over_keys(
                asked,
                keys,
                values,
                table,
                position,
                last,
                start,
                end,
                head.to(tl.int64) * slots,
                scaling,
                softcap,
                page_size,
                window,
                attention_chunk,
                capped,
                lanes,
                key_count,
                size,
                dims,
                value_size,
                value_dims,
                precision,
            )
            heads = tl.num_programs(1) * repeats
            is_stored = is_real[:, None] & (value_dim < value_size)[None, :]
            if tl.load(told + 5) == 1:
                if has_sinks:
                    sink = tl.load(sinks + query_head, mask=is_real, other=0.0)
                    total, weight_sum = _with_sink(total, top, weight_sum, sink)
                attended = tl.math.div_rn(total, tl.where(is_real, weight_sum, 1.0)[:, None])
                output_place = (row * heads + query_head)[:, None] * value_size + value_dim[None, :]
                tl.store(output + output_place, attended.to(output.dtype.element_ty), mask=is_stored)
            else:
                place = (row * most_chunks + chunk) * heads + query_head
                tl.store(partial_values + place[:, None] * value_size + value_dim[None, :], total, mask=is_stored)
                tl.store(partial_tops + place, top, mask=is_real)
                tl.store(partial_weights + place, weight_sum, mask=is_real)


@triton.jit
def _over_keys(
    asked,
    keys,
    values,
    table,
    position,
    last,
    start,
    end,
    first_slot,
    scaling,
    softcap,
    page_size: tl.constexpr,
    window: tl.constexpr,
    attention_chunk: tl.constexpr,
    capped: tl.constexpr,
    lanes: tl.constexpr,
    key_count: tl.constexpr,
    size: tl.constexpr,
    dims: tl.constexpr,
    value_size: tl.constexpr,
    value_dims: tl.constexpr,
    precision: tl.constexpr,
):
    """Attend queries ``[lanes, dims]`` to the keys from ``start`` to ``end``. Returns the weighted
    sum of their values, the largest score and the sum of the weights. Keys after ``last`` do not
    count."""
    dim = tl.arange(0, dims)
    value_dim = tl.arange(0, value_dims)
    top = tl.full([lanes], float("-inf"), dtype=tl.float32)
    weight_sum = tl.zeros([lanes], dtype=tl.float32)
    total = tl.zeros([lanes, value_dims], dtype=tl.float32)
    for first_key in range(start, end, key_count):
        key = first_key + tl.arange(0, key_count)
        is_there = key <= last
        page = tl.load(table + key // page_size, mask=is_there, other=0)
        slot = (first_slot + page.to(tl.int64) * page_size) + key % page_size
        key_tile = tl.load(
            keys + (slot * size)[None, :] + dim[:, None],
            mask=is_there[None, :] & (dim < size)[:, None],
            other=0.0,
        )
        score = tl.dot(asked, key_tile, input_precision=precision) * scaling
        if capped:
            score = (2 * tl.sigmoid(2 * (score / softcap)) - 1) * softcap  # tanh
        is_seen = key[None, :] <= position[:, None]
        if window > 0:
            is_seen = is_seen & (key[None, :] > position[:, None] - window)
        if attention_chunk > 0:
            is_seen = is_seen & (key[None, :] >= (position // attention_chunk * attention_chunk)[:, None])
        score = tl.where(is_seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        # Before a window or chunk all keys are masked. Both tops are then -inf, and their
        # difference must not be NaN.
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp(score - finite_top[:, None])
        rescale = tl.exp(top - finite_top)
        weight_sum = weight_sum * rescale + tl.sum(weight, axis=1)
        value_tile = tl.load(
            values + (slot * value_size)[:, None] + value_dim[None, :],
            mask=is_there[:, None] & (value_dim < value_size)[None, :],
            other=0.0,
        )
        # The instruction does not accumulate, because `total` is rescaled first.
        total = total * rescale[:, None] + tl.dot(weight.to(value_tile.dtype), value_tile, input_precision=precision)
        top = new_top
    return total, top, weight_sum


@triton.jit
def _with_sink(total, top, weight_sum, sink):
    """Join one more key to sums over keys: its score is ``sink``, its value zero. A lane that has
    no keys gets no NaN."""
    new_top = tl.maximum(top, sink)
    kept = tl.exp(top - new_top)
    return total * kept[:, None], weight_sum * kept + tl.exp(sink - new_top)


@triton.jit
def _chunk_start(chunk):
    """Return the position of a chunk's first key."""
    is_short = chunk < SHORT_CHUNKS
    return tl.where(is_short, chunk * SHORT_KEYS, SHORT_CHUNKS * SHORT_KEYS + (chunk - SHORT_CHUNKS) * LONG_KEYS)


@triton.jit(do_not_specialize=["most_chunks", "heads"])
def _join(
    output,
    partial_values,
    partial_tops,
    partial_weights,
    chunk_counts,
    sinks,
    most_chunks,
    heads,
    has_sinks: tl.constexpr,
    at_once: tl.constexpr,
    size: tl.constexpr,
    dims: tl.constexpr,
):
    """Join the chunks of some heads of a row, in their order."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.load(chunk_counts + row)
    if chunks <= 1:
        return
    head = tl.program_id(1) * at_once + tl.arange(0, at_once)
    dim = tl.arange(0, dims)
    is_real = head < heads
    is_stored = is_real[:, None] & (dim < size)[None, :]
    top = tl.full([at_once], float("-inf"), dtype=tl.float32)
    weight_sum = tl.zeros([at_once], dtype=tl.float32)
    total = tl.zeros([at_once, dims], dtype=tl.float32)
    for chunk in range(chunks):
        place = (row * most_chunks + chunk) * heads + head
        own_top = tl.load(partial_tops + place, mask=is_real, other=float("-inf"))
        own_weight = tl.load(partial_weights + place, mask=is_real, other=0.0)
        own_total = tl.load(partial_values + place[:, None] * size + dim[None, :], mask=is_stored, other=0.0)
        new_top = tl.maximum(top, own_top)
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing of a window's yet
        kept, added = tl.exp(top - finite_top), tl.exp(own_top - finite_top)
        weight_sum = weight_sum * kept + own_weight * added
        total = total * kept[:, None] + own_total * added[:, None]
        top = new_top
    if has_sinks:
        total, weight_sum = _with_sink(total, top, weight_sum, tl.load(sinks + head, mask=is_real, other=0.0))
    attended = tl.math.div_rn(total, tl.where(is_real, weight_sum, 1.0)[:, None])
    place = output + (row * heads + head)[:, None] * size + dim[None, :]
    tl.store(place, attended.to(output.dtype.element_ty), mask=is_stored)
