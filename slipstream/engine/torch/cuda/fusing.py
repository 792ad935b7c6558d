"""Replacement of a model's modules on a device by fewer and larger kernels. A draft's step is
mostly kernel launches."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from slipstream.engine.torch.cuda.gates import fuse_gates
from slipstream.engine.torch.cuda.norms import fuse_norms
from slipstream.engine.torch.cuda.products import join_products
from slipstream.engine.torch.cuda.rotary import fuse_rotary


class Fused(NamedTuple):
    """Numbers of replaced modules."""

    norms: int
    rotary: int
    products: int
    gates: int


def fuse(model: nn.Module) -> Fused:
    """Replace each module whose replacement a trial shows to be equal. Sums may round differently
    than the module's own. Products of quantised weights stay the quantiser's."""
    norms, rotary = fuse_norms(model), fuse_rotary(model)
    if getattr(model, "is_quantized", False):
        return Fused(norms, rotary, 0, 0)
    return Fused(norms, rotary, join_products(model), fuse_gates(model))
