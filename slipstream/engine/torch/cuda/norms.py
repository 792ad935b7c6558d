"""RMS norms in one kernel. transformers' own take six or seven kernels, and a layer has two
norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from slipstream.engine.torch.cuda.rounding import TRIAL_ROWS, equal_but_rounding


class FusedRmsNorm(nn.Module):
    """``x / sqrt(mean(x^2) + epsilon) * weight`` over the last dimension, rounded once."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.variance_epsilon = epsilon

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the norm of ``inputs`` ``[..., size]``."""
        return F.rms_norm(inputs, self.weight.shape, self.weight, self.variance_epsilon)


@torch.inference_mode()
def fuse_norms(model: nn.Module) -> int:
    """Replace the norms of ``model`` that a trial shows to be plain RMS norms. Some add one to
    their weights, or have none. Returns their number."""
    found = {name: norm for name, norm in model.named_modules() if type(norm).__name__.endswith("RMSNorm")}
    fused = {name: other for name, norm in found.items() if (other := _fused(norm)) is not None}
    for name, norm in fused.items():
        model.set_submodule(name, norm)
    return len(fused)


def _fused(norm: nn.Module) -> FusedRmsNorm | None:
    weight, epsilon = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or not isinstance(epsilon, float):
        return None
    other = FusedRmsNorm(weight, epsilon)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(TRIAL_ROWS, len(weight), generator=generator).to(weight)
    try:
        expected = norm(inputs)
    except TypeError:  # it needs other arguments
        return None
    return other if equal_but_rounding(other(inputs), expected) else None
