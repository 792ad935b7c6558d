"""Activations on a CPU whose bits do not depend on where torch's threads divide a tensor.

torch computes a few functions, silu, sigmoid and gelu among them, in vectors of up to 32 numbers,
and what is left over at the end of a thread's part one by one, where float32 rounds in another way.
One part, or two equal ones, have nothing left over, since rows are padded to eight; three and more,
which torch makes of a tensor beyond 65,536 numbers, do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers.activations import ACT2CLS

_AT_ONCE = 2 * 32_768
"""Numbers that torch gives to two threads at most."""

_ROWS = 8

_KINDS = tuple({kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()})


def compute_in_even_parts(model: nn.Module) -> None:
    """Have every activation of ``model`` computed in parts that are not divided unevenly. With two
    threads all is well."""
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
