"""Linear layers on a CPU whose weights lie in the order in which oneDNN reads them.

torch passes a weight to oneDNN as the checkpoint has it, and oneDNN reorders it in each call. If
the weights are reordered once, the layers of the embedded target take half to three quarters of the
time. In bfloat16 every bit stays the same; in float32 a sum may round differently. Rows padded to a
multiple of 8 have the same bits for any row count and any thread count (measured from 64 to 18,944
features). A single row has not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

FOR_SINGLE_ROWS = 2**18
"""Fewest weights of a float32 layer for which packing pays in forwards of one row, such as a
draft's."""

_OPS = torch.ops.mkldnn

# A trace cannot record the operation's empty list of scalars, but it can record this function.
_GRAPH = """graph(%inputs : Tensor, %weight : Tensor, %bias : Tensor?):
  %none : str = prim::Constant[value="none"]()
  %empty : str = prim::Constant[value=""]()
  %scalars : Scalar?[] = prim::ListConstruct()
  %outputs : Tensor = mkldnn::_linear_pointwise(%inputs, %weight, %bias, %none, %scalars, %empty)
  return (%outputs)"""


def _packed_linear() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]:
    operation: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    try:
        operation = torch._C._create_function_from_graph("packed_linear", torch._C.parse_ir(_GRAPH))
    except (
        AttributeError,
        RuntimeError,
    ):  # torch's internals, not its public interface; without them nothing is captured

        def operation(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            outputs: torch.Tensor = _OPS._linear_pointwise(inputs, weight, bias, "none", [], "")
            return outputs

    return operation


_LINEAR = _packed_linear()


class PackedLinear(nn.Module):
    """``nn.Linear``, or GPT-2's ``Conv1D``, for inference: ``[..., in_features]`` to
    ``[..., out_features]``."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """``weight``: ``[out_features, in_features]``."""
        super().__init__()
        self.out_features, self.in_features = map(int, weight.shape)
        self.bias = bias
        self.packed: torch.Tensor = _OPS._reorder_linear_weight(weight.detach().contiguous())

    @classmethod
    def of(cls, linear: nn.Linear | Conv1D) -> PackedLinear:
        """Return the packed form of a layer."""
        has_columns = isinstance(linear, Conv1D)  # which has the weight the other way round
        return cls(linear.weight.t() if has_columns else linear.weight, linear.bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute what ``nn.Linear`` computes."""
        return _LINEAR(inputs, self.packed, self.bias)


@dataclass(frozen=True, slots=True)
class Packing:
    """The layers of a model that were replaced."""

    model: nn.Module
    replaced: dict[str, nn.Linear | Conv1D]

    def undo(self) -> None:
        """Put the model's own layers back."""
        for name, linear in self.replaced.items():
            self.model.set_submodule(name, linear)


def pack(model: nn.Module, least_weights: int = 0) -> Packing:
    """Replace the linear layers of ``model`` that oneDNN can pack. float32 layers need at least
    ``least_weights`` weights."""
    found = {name: module for name, module in model.named_modules() if type(module) in (nn.Linear, Conv1D)}
    chosen = {name: linear for name, linear in found.items() if pays(linear.weight, least_weights)}
    for name, linear in chosen.items():
        model.set_submodule(name, PackedLinear.of(linear))
    return Packing(model, chosen)


def packed_weights(model: nn.Module) -> list[torch.Tensor]:
    """Return the weights of the packed layers."""
    return [module.packed for module in model.modules() if isinstance(module, PackedLinear)]


def pays(weight: torch.Tensor, least_weights: int = 0) -> bool:
    """Return True if oneDNN packs a weight, and if that pays."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(_OPS._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32 and weight.numel() >= least_weights
