"""Paged attention behind transformers' attention interface: write the new keys, gather whole pages,
attend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface

from slipstream.engine.pretrained.windows import WHOLE, Sight, sight_of, window_mask
from slipstream.engine.torch.kv_memory import KvMemory, LayerShape
from slipstream.engine.torch.plan import KEY_BLOCK, AttentionGroup, StepPlan

NAME = "slipstream_paged"

_FOREIGN = {
    "indices": "chooses its keys by an index",
    "block_indices": "chooses its keys by an index",
    "position_bias": "adds a bias of its own to its scores",
    "sinks": "has attention sinks that depend on the token",
}
"""Keywords that transformers' models pass to their attention and that change what it computes:
what a model with one does."""

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""The operation behind `F.scaled_dot_product_attention` on a CPU. Called by its name, it also
returns the logarithm of its weights' sum."""


class LaidOut(Protocol):
    """The part of a step that every attention needs."""

    @property
    def slots(self) -> torch.Tensor:
        """Int64 ``[rows]``: the slot of each row's keys and values."""


class Scoring(NamedTuple):
    """Rule by which a layer's queries weigh keys."""

    scaling: float
    sight: Sight = WHOLE
    softcap: float | None = None
    """Scores become ``softcap * tanh(score / softcap)``."""
    sinks: torch.Tensor | None = None
    """``[heads]``: the score of one more key for each head, whose value is zero."""


class Kernels(NamedTuple):
    """Functions that compute attention over pages."""

    write: Callable[[Any, KvMemory, int, torch.Tensor, torch.Tensor], None]
    """Write the step's keys ``[heads, rows, size]`` and values of a layer to the step's slots.
    Arguments: the step, the memory, the layer, keys, values."""
    attend: Callable[[Any, KvMemory, int, torch.Tensor, Scoring], torch.Tensor]
    """Return what each row attends to, ``[rows, heads, value_size]``. Arguments: the step, the
    memory, the layer, queries ``[rows, heads, size]``, and how they weigh keys."""


class Attending(NamedTuple):
    """The arguments of a forward's attention."""

    step: LaidOut
    memory: KvMemory
    kernels: Kernels


class ShapeProbe:
    """A stand-in for `Attending` in one dense forward that learns the shape of every attention
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
        """Record one layer's shape. TypeError if the layer would be computed wrongly here, because
        nothing else would show it."""
        layer: int = module.layer_idx  # type: ignore[assignment]
        if layer in self.layers:
            raise TypeError(f"{type(module).__name__} attends more than once in a layer")
        if not getattr(module, "is_causal", True):
            raise TypeError(f"{type(module).__name__} also attends to later tokens")
        repeats = query.shape[1] // key.shape[1]
        shape = LayerShape(key.shape[1], key.shape[3], value.shape[3], repeats, sight_of(module, mask))
        self.layers[layer] = shape


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
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention with transformers' signature: query ``[1, heads, rows, size]``, key and
    value ``[1, kv_heads, rows, size]``.

    ``s_aux`` are the sinks of gpt-oss and others. Returns ``[1, rows, heads, value_size]``. Which
    keys are seen is what `ShapeProbe` learnt from the layer's mask. TypeError if the architecture
    lost ``plan`` on its way here, or uses something that this attention does not support.
    """
    if plan is None:
        raise TypeError(f"{type(module).__name__} does not pass keyword arguments on to its attention")
    foreign = [does for name, does in _FOREIGN.items() if others.get(name) is not None]
    if s_aux is not None and s_aux.shape != query.shape[1:2]:
        foreign.append("has attention sinks that are not one number for each head")
    if foreign:
        raise TypeError(f"{type(module).__name__} {foreign[0]}")
    if isinstance(plan, ShapeProbe):
        plan.learn(module, query, key, value, attention_mask)
        return value.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(1, 2).contiguous(), None
    step, memory, kernels = plan
    layer: int = module.layer_idx  # type: ignore[assignment]
    kernels.write(step, memory, layer, key[0], value[0])
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    scoring = Scoring(scaling, memory.layers[layer].sight, softcap, s_aux)
    attended = kernels.attend(step, memory, layer, query[0].transpose(0, 1), scoring)
    return attended.contiguous().unsqueeze(0), None  # AFMoE takes a view of it


def _write(step: LaidOut, memory: KvMemory, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    memory.keys[layer].flatten(1, 2).index_copy_(1, step.slots, keys)
    memory.values[layer].flatten(1, 2).index_copy_(1, step.slots, values)


def _attend_groups(
    step: StepPlan,
    memory: KvMemory,
    layer: int,
    rows: torch.Tensor,
    scoring: Scoring,
) -> torch.Tensor:
    """Attend to the plan's groups, one by one."""
    output: torch.Tensor | None = None
    for group in step.groups:
        attended = _attend(group, memory, layer, rows, scoring)
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
    scoring: Scoring,
) -> torch.Tensor:
    """Attend for one group's queries, taken from ``rows`` ``[rows, heads, size]``. Returns ``[batch
    * queries, heads, value_size]``."""
    # Use the layer's shape, not the tensors': a recording must not compute known values.
    shape = memory.layers[layer]
    kv_heads, repeats, size = shape.head_count, shape.queries_per_key, shape.key_size
    picked = rows if group.contiguous else rows.index_select(0, group.rows)
    # Query heads that share a key head become more queries of it, so no key is copied.
    query = picked.view(group.batch, -1, kv_heads, repeats, size).permute(0, 2, 3, 1, 4)
    query = query.reshape(group.batch, kv_heads, -1, size)
    key = _gather(group, memory.keys[layer], kv_heads, memory.page_count)
    value = _gather(group, memory.values[layer], kv_heads, memory.page_count)
    if scoring.softcap is not None or shape.value_size != size:
        attended = _walk(group, query, key, value, scoring, repeats)
    elif scoring.sinks is None and (len(group.spans) == 1 or query.device.type != "cpu"):
        mask = group.mask(range(group.key_count), scoring.sight, repeats, rows.dtype)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scoring.scaling)
    else:
        attended = _attend_spans(group, query, key, value, scoring, repeats)
    attended = attended.view(group.batch, kv_heads, repeats, -1, shape.value_size).permute(0, 3, 1, 2, 4)
    return attended.reshape(-1, kv_heads * repeats, shape.value_size)


def _gather(group: AttentionGroup, pages: torch.Tensor, heads: int, page_count: int) -> torch.Tensor:
    """Return one group's keys or values ``[batch, kv_heads, keys, size]``: a view if they lie in a
    row, and a copy otherwise."""
    if group.first_slot is not None:
        return pages.flatten(1, 2).narrow(1, group.first_slot, group.key_count).unsqueeze(0)
    picked = pages.flatten(0, 1).index_select(0, group.tables(heads, page_count))
    return picked.view(group.batch, heads, group.key_count, pages.shape[-1])


def _attend_spans(
    group: AttentionGroup,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scoring: Scoring,
    repeats: int,
) -> torch.Tensor:
    """Attend to the spans separately, and merge them by log-sum-exp (Milakov and Gimelshein 2018).

    A span that a query does not see changes none of its bits: its share is exactly 0. A sink takes
    a share as one more span, whose values are zero. The shares are a softmax over a few numbers,
    which the library computes row by row. An exponential over all rows at once would round the rows
    at a batch's end differently, because they do not fill a vector.
    """
    outputs, log_sums = [], []
    for span in group.spans:
        output, log_sum = _FLASH(
            query,
            key[:, :, span.start : span.stop],
            value[:, :, span.start : span.stop],
            attn_mask=group.mask(span, scoring.sight, repeats, query.dtype),
            scale=scoring.scaling,
        )
        outputs.append(output.float())
        log_sums.append(log_sum)
    tops = torch.stack(log_sums, dim=-1) + group.unseen(scoring.sight, repeats)
    if scoring.sinks is not None:
        tops = torch.cat([tops, _sink_of_each(query, scoring.sinks, repeats)], dim=-1)
    shares = torch.softmax(tops, dim=-1)
    joined: torch.Tensor = outputs[0] * shares[..., :1]
    for number, output in enumerate(outputs[1:], 1):
        joined = joined + output * shares[..., number : number + 1]
    return joined.to(query.dtype)


def _sink_of_each(query: torch.Tensor, sinks: torch.Tensor, repeats: int) -> torch.Tensor:
    """Return float32 ``[batch, kv_heads, repeats * queries, 1]``: the sink of each query's head."""
    batch, kv_heads, count, _ = query.shape
    each = sinks.float().view(1, kv_heads, repeats, 1, 1)
    return each.expand(batch, kv_heads, repeats, count // repeats, 1).reshape(batch, kv_heads, count, 1)


def _walk(
    group: AttentionGroup,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scoring: Scoring,
    repeats: int,
) -> torch.Tensor:
    """Attention that the library's kernel lacks: values of their own size, and ``softcap *
    tanh(score / softcap)``.

    Walks the keys in blocks of at most KEY_BLOCK with a running softmax. Each block has one shape,
    so its sums have one order. A fully masked block changes nothing. A sink is what the softmax
    starts with.
    """
    softcap = scoring.softcap
    top = query.new_full((*query.shape[:-1], 1), -torch.inf, dtype=torch.float32)
    weight_sum = torch.zeros_like(top)
    if scoring.sinks is not None:
        top, weight_sum = _sink_of_each(query, scoring.sinks, repeats), torch.ones_like(top)
    total = query.new_zeros(*query.shape[:-1], value.shape[-1], dtype=torch.float32)
    for span in group.spans:
        mask = group.mask(span, scoring.sight, repeats, torch.float32)
        for start in range(span.start, span.stop, KEY_BLOCK):
            block = slice(start, min(start + KEY_BLOCK, span.stop))
            scores = (query @ key[:, :, block].transpose(-1, -2)).float() * scoring.scaling
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            scores = scores + mask[..., start - span.start : block.stop - span.start]
            new_top = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            # A block before a sliding window is fully masked. Both tops are then -inf, and their
            # difference must not be NaN.
            finite_top = new_top.masked_fill(new_top == -torch.inf, 0.0)
            weights = (scores - finite_top).exp()
            rescale = (top - finite_top).exp()
            weight_sum = weight_sum * rescale + weights.sum(dim=-1, keepdim=True)
            total = total * rescale + (weights.to(value.dtype) @ value[:, :, block]).float()
            top = new_top
    return (total / weight_sum).to(query.dtype)


GATHERED = Kernels(_write, _attend_groups)
"""torch's own attention, over gathered keys."""

AttentionInterface.register(NAME, paged_attention)
AttentionMaskInterface.register(NAME, window_mask)
