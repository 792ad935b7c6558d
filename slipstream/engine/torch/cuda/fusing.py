"""What a model's parts are replaced by on a device: fewer and larger kernels. A draft's step is
little but their beginnings."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from slipstream.engine.torch.cuda.gates import fuse_gates
from slipstream.engine.torch.cuda.norms import fuse_norms
from slipstream.engine.torch.cuda.products import join_products
from slipstream.engine.torch.cuda.rotary import fuse_rotary


class Fused(NamedTuple):
    """How many of each."""

    norms: int
    rotary: int
    products: int
    gates: int


def fuse(model: nn.Module) -> Fused:
    """Replace what a trial shows to be what its replacement computes. Sums may round otherwise than
    the modules' own."""
    return Fused(fuse_norms(model), fuse_rotary(model), join_products(model), fuse_gates(model))
