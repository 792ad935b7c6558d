"""Products of the same inputs in one call. A device takes as long to start a small product as to
compute it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_TOGETHER = ("q_proj", "k_proj", "v_proj")
"""Layers of one attention module that multiply the same inputs, in this order."""


class Joint:
    """The stacked weights ``[outputs, inputs]`` of several layers, with the last inputs and their
    outputs."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.weight, self.bias = joined(layers)
        self.inputs: torch.Tensor | None = None
        self.outputs: torch.Tensor | None = None


class JoinedLinear(nn.Module):
    """One layer of a joint. The first layer to see inputs computes for all, and the last one drops
    the outputs."""

    def __init__(self, joint: Joint, features: slice, *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.joint, self.features = joint, features
        self.in_features, self.out_features = joint.weight.shape[1], features.stop - features.start
        self._is_first, self._is_last = is_first, is_last

    @property
    def weight(self) -> torch.Tensor:
        """The weight of an ``nn.Linear``."""
        return self.joint.weight[self.features]

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias of an ``nn.Linear``."""
        return None if self.joint.bias is None else self.joint.bias[self.features]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute what ``nn.Linear`` computes."""
        joint = self.joint
        if self._is_first:
            joint.inputs, joint.outputs = inputs, F.linear(inputs, joint.weight, joint.bias)
        outputs = joint.outputs
        if outputs is None or joint.inputs is not inputs:
            return F.linear(inputs, self.weight, self.bias)
        if self._is_last:
            joint.inputs = joint.outputs = None
        return outputs[..., self.features]


def joined(layers: Sequence[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the stacked weights of layers, and their stacked biases if they have any."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    return weight, torch.cat(biases) if biases else None


def can_be_joined(layers: Sequence[Any]) -> bool:
    """Return True if the layers have equal input sizes, dtypes and devices, and all or none of them
    have a bias."""
    if not all(type(layer) is nn.Linear for layer in layers):
        return False
    alike = {(layer.in_features, layer.weight.dtype, layer.weight.device, layer.bias is None) for layer in layers}
    return len(alike) == 1


def free_cached_memory() -> None:
    """Return the memory of replaced weights to the device. The pieces fit nothing here, and other
    processes may need them."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@torch.inference_mode()
def join_products(model: nn.Module) -> int:
    """Join the layers of ``model`` that compute queries, keys and values. Returns the number of
    changed modules."""
    count = 0
    for module in model.modules():
        layers = [getattr(module, name, None) for name in _TOGETHER]
        if can_be_joined(layers):
            _join(module, layers)
            layers.clear()
            free_cached_memory()
            count += 1
    return count


def _join(module: nn.Module, layers: Sequence[Any]) -> None:
    joint, end = Joint(layers), 0
    for name, layer in zip(_TOGETHER, layers, strict=True):
        start, end = end, end + layer.out_features
        is_first, is_last = name == _TOGETHER[0], name == _TOGETHER[-1]
        setattr(module, name, JoinedLinear(joint, slice(start, end), is_first=is_first, is_last=is_last))
