"""Activations on a CPU whose bits do not depend on how torch's threads divide a tensor.

torch computes a few functions, among them silu, sigmoid and gelu, in vectors of up to 32 numbers.
The rest at the end of a thread's part is computed one by one, and there float32 rounds differently.
One part, or two equal ones, have no rest, because rows are padded to eight. torch makes three or
more parts of a tensor beyond 65,536 numbers, and those have one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
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
            module.forward = _in_parts(module.forward)


def _in_parts(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def activate(inputs: torch.Tensor) -> torch.Tensor:
        if inputs.numel() <= _AT_ONCE:
            return function(inputs)
        width = inputs.shape[-1]
        rows = _AT_ONCE // width // _ROWS * _ROWS or 1
        parts = torch.split(inputs.reshape(-1, width), rows)
        return torch.cat([function(part) for part in parts]).view(inputs.shape)

    return activate
