"""Paged attention on CUDA, exact by construction: what a row attends to is walked in one order, whatever runs beside it.

A program computes one key head for some rows of one sequence. It reads keys and values where their pages lie, in tiles from
the first key on, with a running softmax (Milakov and Gimelshein 2018). A tile that a row does not see multiplies its sums by
exactly one and adds exactly nothing, so a row's bits depend on its own sequence alone: not on the rows that share its program,
on other sequences, or on how much room there is for longer ones. Nothing is split over the keys, which would depend on how many
there are.
"""

from subprocess import CalledProcessError

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.torch.attention import Kernels
from slipstream.engine.torch.cuda.step import QUERIES, Step
from slipstream.engine.torch.kv import KvMemory

KEYS = {torch.bfloat16: 64, torch.float32: 32}
"""Keys in a tile."""

_MOST_TILE = 64
"""Rows of a tile, if no more heads share a key head: a program's shared memory holds it whole."""

_PRECISION = "tf32x3"
"""Of products of float32: three of the matrix units' own, whose errors make about one of float32's. The plain units take thirty
times as long."""

_LEAST_TILE = 16
"""Rows, and numbers of a head, that a matrix instruction takes at least."""


def be_ready() -> None:
    """Have what launches kernels compiled, on a machine's first start. UnsupportedModelError if nothing is there to do it."""
    try:
        triton.runtime.driver.active.get_current_target()
    except (RuntimeError, OSError, CalledProcessError) as error:
        raise UnsupportedModelError(
            "attention on CUDA wants a C compiler (gcc, clang or what CC names) with the headers of Python, once on each "
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
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Each row to the keys of its sequence up to itself, or to the last ``window`` of them. Padding has zeros."""
    shape = memory.layers[layer]
    keys, values = memory.keys[layer], memory.values[layer]
    rows = _packed(rows)
    output = rows.new_zeros(rows.shape[0], rows.shape[1], shape.value_size)
    part = max(1, min(QUERIES, _MOST_TILE // shape.queries_per_key))
    is_single = rows.dtype == torch.float32
    try:
        _attend[step.block_count, shape.head_count, triton.cdiv(QUERIES, part)](
            rows,
            keys,
            values,
            output,
            step.blocks,
            step.tables,
            scaling,
            softcap or 0.0,
            row_stride=rows.stride(0),
            head_stride=rows.stride(1),
            slots=keys.shape[1] * keys.shape[2],
            page_size=keys.shape[2],
            window=window or 0,
            capped=softcap is not None,
            part=part,
            repeats=shape.queries_per_key,
            lanes=max(_LEAST_TILE, triton.next_power_of_2(part * shape.queries_per_key)),
            key_count=KEYS[rows.dtype],
            size=shape.key_size,
            dims=max(_LEAST_TILE, triton.next_power_of_2(shape.key_size)),
            value_size=shape.value_size,
            value_dims=max(_LEAST_TILE, triton.next_power_of_2(shape.value_size)),
            precision=_PRECISION,
            num_stages=1 if is_single else 2,
        )
    except OutOfResources as error:
        raise UnsupportedModelError(
            f"attention with heads of {shape.key_size} in {str(rows.dtype).removeprefix('torch.')} does not fit "
            f"{torch.cuda.get_device_name(rows.device)}: {error}"
        ) from error
    return output


def _packed(heads: torch.Tensor) -> torch.Tensor:
    """With the numbers of a head one after another."""
    return heads if heads.stride(-1) == 1 else heads.contiguous()


PAGED = Kernels(_write_rows, _attend_rows)
"""Over pages where they lie."""

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
    """A row's keys and values."""
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


# Integers that Triton would otherwise compile for by their value: another compilation may round otherwise.
@triton.jit(do_not_specialize=["row_stride", "head_stride", "slots", "scaling", "softcap"])
def _attend(
    rows,
    keys,
    values,
    output,
    blocks,
    tables,
    scaling,
    softcap,
    row_stride,
    head_stride,
    slots,
    page_size: tl.constexpr,
    window: tl.constexpr,
    capped: tl.constexpr,
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
    """A block of queries and a key head; see `Step.blocks` and `Step.tables`."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    skipped = tl.program_id(2) * part
    first_row = tl.load(blocks + block * 4) + skipped
    count = tl.load(blocks + block * 4 + 1) - skipped
    first_position = tl.load(blocks + block * 4 + 2) + skipped
    table = tl.load(blocks + block * 4 + 3)
    if count <= 0:
        return
    # Query heads that share a key head are more queries of it.
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
    top = tl.full([lanes], float("-inf"), dtype=tl.float32)
    weight_sum = tl.zeros([lanes], dtype=tl.float32)
    total = tl.zeros([lanes, value_dims], dtype=tl.float32)
    last = first_position + tl.minimum(count, part) - 1
    start = 0
    if window > 0:
        start = tl.maximum(first_position - window + 1, 0) // key_count * key_count
    for first_key in range(start, last + 1, key_count):
        key = first_key + tl.arange(0, key_count)
        is_there = key <= last
        page = tl.load(tables + table + key // page_size, mask=is_there, other=0)
        slot = (head.to(tl.int64) * slots + page.to(tl.int64) * page_size) + key % page_size
        key_tile = tl.load(
            keys + (slot * size)[None, :] + dim[:, None], mask=is_there[None, :] & (dim < size)[:, None], other=0.0
        )
        score = tl.dot(asked, key_tile, input_precision=precision) * scaling
        if capped:
            score = (2 * tl.sigmoid(2 * (score / softcap)) - 1) * softcap  # tanh
        is_seen = key[None, :] <= position[:, None]
        if window > 0:
            is_seen = is_seen & (key[None, :] > position[:, None] - window)
        score = tl.where(is_seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        # Before a sliding window all is masked: both tops are then -inf, and their difference must not be NaN.
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp(score - finite_top[:, None])
        rescale = tl.exp(top - finite_top)
        weight_sum = weight_sum * rescale + tl.sum(weight, axis=1)
        value_tile = tl.load(
            values + (slot * value_size)[:, None] + value_dim[None, :],
            mask=is_there[:, None] & (value_dim < value_size)[None, :],
            other=0.0,
        )
        # Not accumulated by the instruction: `total` is rescaled first.
        total = total * rescale[:, None] + tl.dot(weight.to(value_tile.dtype), value_tile, input_precision=precision)
        top = new_top
    attended = total / tl.where(is_real, weight_sum, 1.0)[:, None]
    place = (row * tl.num_programs(1) * repeats + query_head)[:, None] * value_size + value_dim[None, :]
    tl.store(
        output + place,
        attended.to(output.dtype.element_ty),
        mask=is_real[:, None] & (value_dim < value_size)[None, :],
    )
