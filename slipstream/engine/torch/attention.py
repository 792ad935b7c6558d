"""Paged attention behind transformers' attention interface: write the new keys, gather whole pages,
attend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface

from slipstream.engine.pretrained.windows import window_mask, window_of
from slipstream.engine.torch.kv_memory import KvMemory, LayerShape
from slipstream.engine.torch.plan import KEY_BLOCK, AttentionGroup, StepPlan

NAME = "slipstream_paged"

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""What `F.scaled_dot_product_attention` runs on a CPU; called by its name, it also tells the
logarithm of its weights' sum."""


class LaidOut(Protocol):
    """A step as far as every attention needs it."""

    @property
    def slots(self) -> torch.Tensor:
        """Int64 ``[rows]``: where each row's keys and values go."""


class Kernels(NamedTuple):
    """What computes attention over pages."""

    write: Callable[[Any, KvMemory, int, torch.Tensor, torch.Tensor], None]
    """Of a step, the memory and a layer: have its rows' keys ``[heads, rows, size]`` and values
    where the step's slots say."""
    attend: Callable[[Any, KvMemory, int, torch.Tensor, float, int | None, float | None], torch.Tensor]
    """Of a step, the memory, a layer, its rows' queries ``[rows, heads, size]``, scaling, window
    and softcap, if any: what each row attends to, ``[rows, heads, value_size]``."""


class Attending(NamedTuple):
    """What a forward's attention is told."""

    step: LaidOut
    memory: KvMemory
    kernels: Kernels


class ShapeProbe:
    """Stands in for `Attending` in one dense forward that learns the shape of every attention
    layer."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}

    def learn(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> None:
        """Take one layer's shape. TypeError if it would be computed wrongly here: then nothing else
        would tell."""
        layer: int = module.layer_idx  # type: ignore[assignment]
        if layer in self.layers:
            raise TypeError(f"{type(module).__name__} attends more than once in a layer")
        if not getattr(module, "is_causal", True):
            raise TypeError(f"{type(module).__name__} also attends to later tokens")
        window = window_of(module, mask) or None
        repeats = query.shape[1] // key.shape[1]
        self.layers[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3], repeats, window)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    plan: Attending | ShapeProbe | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature: query ``[1, heads, rows, size]``, key and value
    ``[1, kv_heads, rows, size]``.

    Returns ``[1, rows, heads, value_size]``. A layer's window is what `ShapeProbe` learnt of its
    mask. TypeError if the architecture lost ``plan`` on its way here or uses something this
    attention does not do.
    """
    if plan is None:
        raise TypeError(f"{type(module).__name__} does not pass keyword arguments on to its attention")
    if s_aux is not None:
        raise TypeError(f"{type(module).__name__} uses attention sinks")
    if isinstance(plan, ShapeProbe):
        plan.learn(module, query, key, value, attention_mask)
        return value.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(1, 2), None
    step, memory, kernels = plan
    layer: int = module.layer_idx  # type: ignore[assignment]
    kernels.write(step, memory, layer, key[0], value[0])
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    rows = query[0].transpose(0, 1)
    return kernels.attend(step, memory, layer, rows, scaling, memory.layers[layer].window, softcap).unsqueeze(0), None


def _write(step: LaidOut, memory: KvMemory, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    memory.keys[layer].flatten(1, 2).index_copy_(1, step.slots, keys)
    memory.values[layer].flatten(1, 2).index_copy_(1, step.slots, values)


def _attend_groups(
    step: StepPlan,
    memory: KvMemory,
    layer: int,
    rows: torch.Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """By a plan's groups."""
    output: torch.Tensor | None = None
    for group in step.groups:
        attended = _attend(group, memory, layer, rows, scaling, window, softcap)
        if group.contiguous:
            return attended
        if output is None:
            output = rows.new_zeros(rows.shape[0], rows.shape[1], memory.layers[layer].value_size)
        output.index_copy_(0, group.rows[group.real], attended[group.real])
    assert output is not None
    return output


def _attend(
    group: AttentionGroup,
    memory: KvMemory,
    layer: int,
    rows: torch.Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """One group's queries, taken from ``rows`` ``[rows, heads, size]``:
    ``[batch * queries, heads, value_size]``."""
    # The layer's shape and not the tensors': a recording must not compute what is known.
    shape = memory.layers[layer]
    kv_heads, repeats, size = shape.head_count, shape.queries_per_key, shape.key_size
    picked = rows if group.contiguous else rows.index_select(0, group.rows)
    # The query heads that share a key head become more queries of it: no key is copied.
    query = picked.view(group.batch, -1, kv_heads, repeats, size).permute(0, 2, 3, 1, 4)
    query = query.reshape(group.batch, kv_heads, -1, size)
    key = _gather(group, memory.keys[layer], kv_heads, memory.page_count)
    value = _gather(group, memory.values[layer], kv_heads, memory.page_count)
    if softcap is not None or shape.value_size != size:
        attended = _walk(group, query, key, value, scaling, window, softcap, repeats)
    elif len(group.spans) == 1 or query.device.type != "cpu":
        mask = group.mask(range(group.key_count), window, repeats, rows.dtype)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    else:
        attended = _attend_spans(group, query, key, value, scaling, window, repeats)
    attended = attended.view(group.batch, kv_heads, repeats, -1, shape.value_size).permute(0, 3, 1, 2, 4)
    return attended.reshape(-1, kv_heads * repeats, shape.value_size)


def _gather(group: AttentionGroup, pages: torch.Tensor, heads: int, page_count: int) -> torch.Tensor:
    """One group's keys or values ``[batch, kv_heads, keys, size]``: where they lie in a row a view,
    and else a copy."""
    if group.first_slot is not None:
        return pages.flatten(1, 2).narrow(1, group.first_slot, group.key_count).unsqueeze(0)
    picked = pages.flatten(0, 1).index_select(0, group.tables(heads, page_count))
    return picked.view(group.batch, heads, group.key_count, pages.shape[-1])


def _attend_spans(
    group: AttentionGroup,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    window: int | None,
    repeats: int,
) -> torch.Tensor:
    """Attention to both spans by themselves and a log-sum-exp merge of the two (Milakov and
    Gimelshein 2018).

    A span that a query does not see changes none of its bits: its share is exactly 0. The shares
    are a softmax over two numbers, which the library computes row by row; an exponential over all
    rows at once would round those at a batch's end, which do not fill a vector, in another way.
    """
    outputs, log_sums = [], []
    for span in group.spans:
        output, log_sum = _FLASH(
            query,
            key[:, :, span.start : span.stop],
            value[:, :, span.start : span.stop],
            attn_mask=group.mask(span, window, repeats, query.dtype),
            scale=scaling,
        )
        outputs.append(output.float())
        log_sums.append(log_sum)
    shares = torch.softmax(torch.stack(log_sums, dim=-1) + group.unseen(window, repeats), dim=-1)
    joined: torch.Tensor = outputs[0] * shares[..., :1] + outputs[1] * shares[..., 1:]
    return joined.to(query.dtype)


def _walk(
    group: AttentionGroup,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
    repeats: int,
) -> torch.Tensor:
    """Attention that the library's kernel lacks: values of a size of their own,
    ``softcap * tanh(score / softcap)``.

    Walks the keys in blocks of at most KEY_BLOCK with a running softmax: each block has one shape,
    so its sums have one order, and a block that is all masked changes nothing.
    """
    top = query.new_full((*query.shape[:-1], 1), -torch.inf, dtype=torch.float32)
    weight_sum = torch.zeros_like(top)
    total = query.new_zeros(*query.shape[:-1], value.shape[-1], dtype=torch.float32)
    for span in group.spans:
        mask = group.mask(span, window, repeats, torch.float32)
        for start in range(span.start, span.stop, KEY_BLOCK):
            block = slice(start, min(start + KEY_BLOCK, span.stop))
            scores = (query @ key[:, :, block].transpose(-1, -2)).float() * scaling
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            scores = scores + mask[..., start - span.start : block.stop - span.start]
            new_top = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            # A block before a sliding window is all masked: both tops are then -inf, and their
            # difference must not be NaN.
            finite_top = new_top.masked_fill(new_top == -torch.inf, 0.0)
            weights = (scores - finite_top).exp()
            rescale = (top - finite_top).exp()
            weight_sum = weight_sum * rescale + weights.sum(dim=-1, keepdim=True)
            total = total * rescale + (weights.to(value.dtype) @ value[:, :, block]).float()
            top = new_top
    return (total / weight_sum).to(query.dtype)


GATHERED = Kernels(_write, _attend_groups)
"""torch's own attention, of keys that are gathered."""

AttentionInterface.register(NAME, paged_attention)
AttentionMaskInterface.register(NAME, window_mask)
