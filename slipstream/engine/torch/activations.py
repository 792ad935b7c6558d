"""Activations on a CPU whose bits do not depend on how torch's threads divide a tensor.

torch computes a few functions, among them silu, sigmoid and gelu, in vectors of up to 32 numbers.
The rest at the end of a thread's part is computed one by one, and there float32 rounds differently.
One part, or two equal ones, have no rest, because rows are padded to eight. torch makes three or
more parts of a tensor beyond 65,536 numbers, and those have one. Its gelu makes as many parts as
there are threads beyond 16,384 numbers. One number a row has a rest too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2CLS

_AT_ONCE = 2 * 32_768
"""Most numbers that torch gives to two threads."""

_GELU_AT_ONCE = 16_384
"""Most numbers that torch's gelu gives to one thread."""

_ROWS = 8

_VECTOR_NUMBERS = 32
"""Most numbers that torch computes at a time. So many rows of any width fill whole vectors."""

_KINDS = tuple({kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()})


def compute_in_even_parts(model: nn.Module) -> None:
    """Make every activation of ``model`` compute in even parts. Two threads or fewer need no
    change."""
    if torch.get_num_threads() <= 2:
        return
    for module in model.modules():
        if isinstance(module, _KINDS):
            is_gelu = "gelu" in type(module).__name__.lower()
            module.forward = in_even_parts(module.forward, _GELU_AT_ONCE if is_gelu else _AT_ONCE)


def compute_single_gates_alike(model: nn.Module) -> None:
    """Make what is computed of a layer's only output use no vectors: a strided tensor has none.

    Qwen2-MoE's gate of its shared expert is such an output. Eight rows fill no vector, so the
    sigmoid of a row's gate would depend on where the row stands.
    """
    for module in model.modules():
        if getattr(module, "out_features", 0) == 1:
            module.register_forward_hook(lambda _module, _inputs, output: F.pad(output, (0, 1))[..., :1])


def has_partial_vectors(model: nn.Module) -> bool:
    """Return True if eight rows of a layer's outputs do not fill whole vectors. What is computed of
    them one by one may depend on the rows beside a row."""
    widths = [int(getattr(module, "out_features", 0)) for module in model.modules()]
    return any(_ROWS * width % _VECTOR_NUMBERS for width in widths)


def route_in_whole_vectors(model: nn.Module) -> None:
    """Make a mixture's routers see rows padded to whole vectors.

    A router may compute a sigmoid of the few scores that it has chosen. Of two scores each, eight
    rows fill half a vector of AVX-512, so a row's weights would depend on the rows beside it.
    """
    for module in model.modules():
        if "router" in type(module).__name__.lower():
            module.forward = in_whole_vectors(module.forward)


def in_whole_vectors(route: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of rows ``[..., rows, size]`` that calls ``route`` with a multiple of 32 of
    them, and cuts each tensor of its answer."""

    def routed(inputs: torch.Tensor, *others: Any, **named: Any) -> Any:
        count = inputs.shape[-2]
        padded = count + -count % _VECTOR_NUMBERS
        if padded == count or any(isinstance(other, torch.Tensor) for other in (*others, *named.values())):
            return route(inputs, *others, **named)
        answer = route(F.pad(inputs, (0, 0, 0, padded - count)), *others, **named)
        if isinstance(answer, torch.Tensor):
            return _cut(answer, padded, count)
        return type(answer)(_cut(part, padded, count) for part in answer)

    return routed


def _cut(part: Any, padded: int, count: int) -> Any:
    """Return the first ``count`` rows of a tensor that has ``padded`` ones."""
    if not isinstance(part, torch.Tensor) or padded not in part.shape:
        return part
    return part.narrow(part.shape.index(padded), 0, count)


def in_even_parts(
    function: Callable[[torch.Tensor], torch.Tensor], at_once: int = _AT_ONCE
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function of rows that calls ``function`` with few enough of them at a time, if
    possible with ``at_once`` numbers at most."""

    def activate(inputs: torch.Tensor) -> torch.Tensor:
        if inputs.numel() <= at_once:
            return function(inputs)
        width = inputs.shape[-1]
        rows = at_once // width // _ROWS * _ROWS or 1
        parts = torch.split(inputs.reshape(-1, width), rows)
        return torch.cat([function(part) for part in parts]).view(*inputs.shape[:-1], -1)

    return activate
