"""Activations on a CPU whose bits do not depend on how torch's threads divide a tensor.

torch computes a few functions, among them silu, sigmoid and gelu, in vectors of up to 32 numbers.
The rest at the end of a thread's part is computed one by one, and there float32 rounds differently.
One part, or two equal ones, have no rest, because rows are padded to eight. torch makes three or
more parts of a tensor beyond 65,536 numbers, and those have one. So has one number a row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2CLS

_AT_ONCE = 2 * 32_768
"""Most numbers that torch gives to two threads."""

_ROWS = 8

_KINDS = tuple({kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()})


def compute_in_even_parts(model: nn.Module) -> None:
    """Make every activation of ``model`` compute in even parts. Two threads or fewer need no
    change."""
    if torch.get_num_threads() <= 2:
        return
    for module in model.modules():
        if isinstance(module, _KINDS):
            module.forward = in_even_parts(module.forward)


def compute_single_gates_alike(model: nn.Module) -> None:
    """Make what is computed of a layer's only output use no vectors: a strided tensor has none.

    Qwen2-MoE's gate of its shared expert is such an output. Eight rows fill no vector, so the
    sigmoid of a row's gate would depend on where the row stands.
    """
    for module in model.modules():
        if getattr(module, "out_features", 0) == 1:
            module.register_forward_hook(lambda _module, _inputs, output: F.pad(output, (0, 1))[..., :1])


def in_even_parts(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function of rows that calls ``function`` with few enough of them at a time."""

    def activate(inputs: torch.Tensor) -> torch.Tensor:
        if inputs.numel() <= _AT_ONCE:
            return function(inputs)
        width = inputs.shape[-1]
        rows = _AT_ONCE // width // _ROWS * _ROWS or 1
        parts = torch.split(inputs.reshape(-1, width), rows)
        return torch.cat([function(part) for part in parts]).view(*inputs.shape[:-1], -1)

    return activate
