"""Rotary positions of queries and keys in one kernel, with the modules' own bits. transformers'
functions take ten kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn

from slipstream.engine.torch.cuda.recorded_forward import same_bits

_NAME = "apply_rotary_pos_emb"
"""Name of this function in every architecture of transformers, though it computes different
things."""

_HEADS = 8
"""Heads that a program rotates."""

_PROBED_HEADS = 4, 2
_PROBED_ROWS, _PROBED_SIZE = 8, 16

Rotate = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def rotate(
    queries: torch.Tensor, keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``x * cos + turned(x) * sin`` of queries ``[1, heads, rows, size]`` and of keys ``[1,
    key_heads, rows, size]``. ``turned`` has minus the second half of ``x`` and then the first;
    ``cos`` and ``sin`` are ``[1, rows, size]``. All have one dtype, to which each product and the
    sum are rounded."""
    rows, size = cos.shape[-2:]
    cos, sin = cos.contiguous(), sin.contiguous()
    rotated = [heads.new_empty(rows, heads.shape[1], size) for heads in (queries, keys)]
    groups = sum(triton.cdiv(heads.shape[1], _HEADS) for heads in (queries, keys))
    _rotate[rows, groups](
        queries,
        keys,
        cos,
        sin,
        *rotated,
        query_row_stride=queries.stride(2),
        query_head_stride=queries.stride(1),
        key_row_stride=keys.stride(2),
        key_head_stride=keys.stride(1),
        query_heads=queries.shape[1],
        key_heads=keys.shape[1],
        half=size // 2,
        dims=triton.next_power_of_2(size // 2),
        at_once=_HEADS,
        num_warps=1,
        enable_fp_fusion=False,
    )
    turned_queries, turned_keys = (heads.transpose(0, 1).unsqueeze(0) for heads in rotated)
    return turned_queries, turned_keys


def fuse_rotary(model: nn.Module) -> int:
    """Make attention modules use `rotate` if a trial shows that their own function gives the same
    bits. Returns the number of changed modules. Functions that turn neighbouring pairs, or a part
    of each head, stay."""
    known: dict[Any, Rotate | None] = {}
    like = next(model.parameters())
    count = 0
    for module in model.modules():
        forward = type(module).forward
        if not isinstance(forward, FunctionType) or _NAME not in forward.__code__.co_names or "forward" in vars(module):
            continue
        own = forward.__globals__.get(_NAME)
        if own not in known:
            known[own] = _fused(own, like)
        fused = known[own]
        if fused is not None:
            # The same code with another function by that name, for this module alone and not for
            # all modules of its file.
            names = {**forward.__globals__, _NAME: fused}
            other = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
            other.__kwdefaults__ = forward.__kwdefaults__
            module.forward = MethodType(other, module)
            count += 1
    return count


@torch.inference_mode()
def _fused(own: Any, like: torch.Tensor) -> Rotate | None:
    """Return a replacement of ``own``, or None."""
    if not callable(own):
        return None
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(like)

    # The layout that attention uses: the heads of a row together.
    queries, keys = (drawn(1, _PROBED_ROWS, count, _PROBED_SIZE).transpose(1, 2) for count in _PROBED_HEADS)
    angles = drawn(1, _PROBED_ROWS, _PROBED_SIZE), drawn(1, _PROBED_ROWS, _PROBED_SIZE)
    try:
        expected = own(queries, keys, *angles)
        if not all(_are_same(*pair) for pair in zip(rotate(queries, keys, *angles), expected, strict=True)):
            return None
    except Exception:  # a function by that name that needs other arguments
        return None

    def fused(*given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if named or len(given) != 4 or not _can_rotate(*given):
            result: tuple[torch.Tensor, torch.Tensor] = own(*given, **named)
            return result
        return rotate(*given)

    return fused


def _can_rotate(queries: Any, keys: Any, cos: Any, sin: Any) -> bool:
    """Return True if `rotate` supports these shapes, strides and dtypes."""
    if not all(isinstance(given, torch.Tensor) for given in (queries, keys, cos, sin)):
        return False
    is_whole = cos.shape[-1] == queries.shape[-1] == keys.shape[-1] and cos.dim() == 3 and cos.shape[0] == 1
    is_packed = queries.stride(-1) == keys.stride(-1) == 1
    return bool(is_whole and is_packed and {cos.dtype, sin.dtype, keys.dtype} == {queries.dtype})


def _are_same(found: torch.Tensor, expected: Any) -> bool:
    if not isinstance(expected, torch.Tensor) or (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    return same_bits(found.contiguous(), expected.contiguous())


_INTEGERS = ["query_row_stride", "query_head_stride", "key_row_stride", "key_head_stride", "query_heads", "key_heads"]


@triton.jit(do_not_specialize=_INTEGERS)
def _rotate(
    queries,
    keys,
    cos,
    sin,
    rotated_queries,
    rotated_keys,
    query_row_stride,
    query_head_stride,
    key_row_stride,
    key_head_stride,
    query_heads,
    key_heads,
    half: tl.constexpr,
    dims: tl.constexpr,
    at_once: tl.constexpr,
):
    """Rotate some heads of a row: first those of the queries, then those of the keys."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    query_groups = tl.cdiv(query_heads, at_once)
    angle = row * 2 * half
    if group < query_groups:
        source = queries + row * query_row_stride
        target = rotated_queries + row * query_heads * 2 * half
        _rotate_heads(
            source, target, cos + angle, sin + angle, query_head_stride, group, query_heads, half, dims, at_once
        )
    else:
        source = keys + row * key_row_stride
        target = rotated_keys + row * key_heads * 2 * half
        group -= query_groups
        _rotate_heads(source, target, cos + angle, sin + angle, key_head_stride, group, key_heads, half, dims, at_once)


@triton.jit
def _rotate_heads(
    source,
    target,
    cos,
    sin,
    head_stride,
    group,
    heads,
    half: tl.constexpr,
    dims: tl.constexpr,
    at_once: tl.constexpr,
):
    head = group * at_once + tl.arange(0, at_once)
    dim = tl.arange(0, dims)
    is_real = (head < heads)[:, None] & (dim < half)[None, :]
    place = source + head[:, None] * head_stride + dim[None, :]
    first = tl.load(place, mask=is_real, other=0.0).to(tl.float32)
    second = tl.load(place + half, mask=is_real, other=0.0).to(tl.float32)
    is_angle = dim < half
    first_cos = tl.load(cos + dim, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    second_cos = tl.load(cos + half + dim, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    first_sin = tl.load(sin + dim, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    second_sin = tl.load(sin + half + dim, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    stored = target.dtype.element_ty
    kept, turned = (first * first_cos).to(stored), (second * first_sin).to(stored)
    output = target + head[:, None] * 2 * half + dim[None, :]
    tl.store(output, (kept.to(tl.float32) - turned.to(tl.float32)).to(stored), mask=is_real)
    kept, turned = (second * second_cos).to(stored), (first * second_sin).to(stored)
    tl.store(output + half, (kept.to(tl.float32) + turned.to(tl.float32)).to(stored), mask=is_real)
