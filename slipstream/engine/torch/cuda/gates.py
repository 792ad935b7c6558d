"""Gated feed-forward blocks with one product for gate and inputs, and one kernel for the
activation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

from slipstream.engine.torch.cuda.products import can_be_joined, free_cached_memory, joined
from slipstream.engine.torch.cuda.rounding import TRIAL_ROWS, equal_but_rounding

_PROJECTIONS = ("gate_proj", "up_proj")
_COLUMNS = 1024
"""Columns that a program computes."""
_PROBED_SCALES = 1.0, 30.0, 1000.0
"""Scales of the trial's inputs. Some blocks clamp large values."""


def gate(both: torch.Tensor) -> torch.Tensor:
    """Return ``silu(gate) * value`` ``[..., size]`` of ``[..., 2 * size]``, gates first. Activation
    and product are rounded."""
    size = both.shape[-1] // 2
    gated = both.new_empty(*both.shape[:-1], size)
    _gate[gated.numel() // size, triton.cdiv(size, _COLUMNS)](both, gated, size, columns=_COLUMNS)
    return gated


class GatedBlock(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.joint = joined([getattr(block, name) for name in _PROJECTIONS])
        self.down_proj = block.down_proj

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the block for ``inputs`` ``[..., hidden]``."""
        outputs: torch.Tensor = self.down_proj(gate(F.linear(inputs, *self.joint)))
        return outputs


@torch.inference_mode()
def fuse_gates(model: nn.Module) -> int:
    """Replace the feed-forward blocks of ``model`` that a trial shows to be gated by a SiLU.
    Returns their number."""
    found = [name for name, module in model.named_modules() if _is_gated(module)]
    for name in found:
        model.set_submodule(name, GatedBlock(model.get_submodule(name)))
        free_cached_memory()
    return len(found)


def _is_gated(block: Any) -> bool:
    projections = [getattr(block, name, None) for name in _PROJECTIONS]
    down: Any = getattr(block, "down_proj", None)
    if not can_be_joined(projections) or type(down) is not nn.Linear:
        return False
    calls: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
    layers: list[Any] = [*projections, down]
    hooks = [
        layer.register_forward_hook(lambda own, asked, made: calls.append((own, *asked, made))) for layer in layers
    ]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(TRIAL_ROWS, down.weight.shape[0], generator=generator).to(down.weight)
    try:
        return all(_gates(block, inputs * scale, layers, calls) for scale in _PROBED_SCALES)
    except Exception:  # the block needs other arguments, so it is not replaced
        return False
    finally:
        for hook in hooks:
            hook.remove()


def _gates(
    block: Any, inputs: torch.Tensor, layers: list[Any], calls: list[tuple[Any, torch.Tensor, torch.Tensor]]
) -> bool:
    """Return True if the block computes what `gate` computes for these inputs. Hooks on its
    ``layers`` record their ``calls``."""
    calls.clear()
    output = block(inputs)
    if [call[0] for call in calls] != layers:
        return False
    (_, gate_inputs, gates), (_, up_inputs, ups), (_, gated, downs) = calls
    if not (gate_inputs is inputs and up_inputs is inputs and output is downs):
        return False
    return equal_but_rounding(gate(torch.cat([gates, ups], dim=-1)), gated)


@triton.jit(do_not_specialize=["size"])
def _gate(both, gated, size, columns: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    is_real = column < size
    place = both + row * 2 * size + column
    opened = tl.load(place, mask=is_real, other=0.0).to(tl.float32)
    value = tl.load(place + size, mask=is_real, other=0.0).to(tl.float32)
    stored = gated.dtype.element_ty
    activated = (opened / (1 + tl.exp(-opened))).to(stored).to(tl.float32)
    tl.store(gated + row * size + column, (activated * value).to(stored), mask=is_real)
