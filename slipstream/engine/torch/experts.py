"""A mixture's experts on a CPU, each with a row count that is a multiple of eight.

transformers gives an expert exactly the rows that chose it. Then the count of rows, and so the
order in which a product adds, depends on what else is in the step: float32 logits of Mixtral
differed by up to 5e-6. Padded to a multiple of eight, a row has the same bits in every product, as
in a linear layer (`slipstream.engine.torch.plan`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.integrations.moe import ExpertsInterface

from slipstream.engine.torch.activations import in_even_parts
from slipstream.engine.torch.packing import PackedLinear, pays

NAME = "slipstream_even_rows"

_ROWS = 8
_PACKED = "packed_"
"""Prefix of a name of packed weights."""


def is_mixture(model: torch.nn.Module) -> bool:
    """Return True if a model has experts or routers. Their rows may depend on one another, by code
    that differs from model to model."""
    return any(word in type(module).__name__.lower() for module in model.modules() for word in ("expert", "router"))


def pack(model: torch.nn.Module) -> None:
    """Pack the experts of a model that computes them by `even_rows`. Its own weights are gone."""
    for experts in [module for module in model.modules() if hasattr(module, "_is_expert_parallel")]:
        for name in (_first_of(experts), "down_proj"):
            if pays(getattr(experts, name)):
                weights = (_weight_of(experts, name, number) for number in range(len(getattr(experts, name))))
                packed = nn.ModuleList([PackedLinear(*each) for each in weights])
                setattr(experts, _PACKED + name, packed)
                setattr(experts, name, nn.Parameter(torch.empty(0), requires_grad=False))


def even_rows(
    experts: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute experts with transformers' signature: rows ``[rows, size]``, and for each row its
    experts and their weights ``[rows, experts of a row]``. Returns ``[rows, size]``."""
    expert_of = top_k_index.reshape(-1)
    order = torch.argsort(expert_of, stable=True)
    counts = torch.bincount(expert_of, minlength=experts.num_experts).tolist()
    outputs = hidden_states.new_zeros(len(order), hidden_states.shape[-1])
    for expert, chosen in enumerate(torch.split(order, counts)):
        if expert < experts.num_experts and len(chosen):
            rows = F.pad(chosen, (0, -len(chosen) % _ROWS)) // top_k_index.shape[-1]
            outputs[chosen] = _expert(experts, expert, hidden_states[rows])[: len(chosen)]
    # In a row's own order of experts. Elementwise, so that no reduction chooses an order by shape.
    parts = outputs.view(*top_k_index.shape, -1) * top_k_weights.unsqueeze(-1)
    total = parts[:, 0]
    for number in range(1, parts.shape[1]):
        total = total + parts[:, number]
    return total.to(hidden_states.dtype)


def _expert(experts: Any, number: int, rows: torch.Tensor) -> torch.Tensor:
    first = _first_of(experts)
    activate = experts._apply_gate if experts.has_gate else experts.act_fn
    output = _product(experts, "down_proj", number, in_even_parts(activate)(_product(experts, first, number, rows)))
    normed: torch.Tensor = experts.post_expert_norm(output) if experts.has_post_expert_norm else output
    return normed


def _first_of(experts: Any) -> str:
    return "gate_up_proj" if experts.has_gate else "up_proj"


def _product(experts: Any, name: str, number: int, rows: torch.Tensor) -> torch.Tensor:
    packed = getattr(experts, _PACKED + name, None)
    if packed is not None:
        product: torch.Tensor = packed[number](rows)
        return product
    return F.linear(rows, *_weight_of(experts, name, number))


def _weight_of(experts: Any, name: str, number: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    weight = getattr(experts, name)[number]
    bias = getattr(experts, f"{name}_bias")[number] if experts.has_bias else None
    return weight.t() if experts.is_transposed else weight, bias


ExpertsInterface.register(NAME, even_rows)
