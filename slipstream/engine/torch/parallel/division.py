"""The parameters of a model that each rank holds, by transformers' plan of tensor parallelism.

A plan names modules and their styles. `colwise` divides a linear layer's outputs, and so the heads
of attention; `rowwise` divides the inputs of the layer after it, whose outputs are then parts of a
sum. The embedding and the head are divided by tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from slipstream.engine.errors import UnsupportedModelError

COLUMNS, ROWS, TOKENS, HEAD = "colwise", "rowwise", "embedding_rowwise", "colwise_gather_output"
_REPLICATED = "replicated_with_grad_allreduce"
"""A norm of each head. It differs from a module that the plan does not name in training only."""

_INPUTS, _OUTPUTS = 1, 0
"""Dimensions of a linear layer's weight."""

_PLACE = re.compile(r"\.\d+(?=\.|$)")


class Split(NamedTuple):
    """A parameter that the ranks divide: along which dimension, its size there, and the size of
    each rank's part. The last part may be filled up with zeros."""

    dimension: int
    whole: int
    width: int

    def own(self, rank: int) -> slice:
        """Return the part of the whole parameter that a rank holds."""
        start = min(rank * self.width, self.whole)
        return slice(start, min(start + self.width, self.whole))


class Division(NamedTuple):
    """A model of one rank, without weights yet."""

    styles: Mapping[str, str]
    """Styles of the divided modules, by their names."""
    splits: Mapping[str, Split]
    """Divided parameters, by their names."""
    vocabulary_size: int


def divide(model: Any, ranks: int) -> Division:
    """Give the divided parameters of ``model`` a rank's size, without memory. UnsupportedModelError
    if ``ranks`` cannot divide it."""
    kind = type(model).__name__
    _refuse_heads(model.config.get_text_config(), kind, ranks)
    styles = _styles_of(model, kind)
    splits: dict[str, Split] = {}
    for name, style in styles.items():
        module = model.get_submodule(name)
        for parameter, dimension in _divided_parameters(module, style).items():
            weight = getattr(module, parameter)
            whole = weight.shape[dimension]
            if whole % ranks and style in (COLUMNS, ROWS):
                raise UnsupportedModelError(
                    f"{kind} cannot be divided among {ranks} ranks: {name} has {whole} features, and "
                    f"--tensor-parallel-size {ranks} does not divide {whole}"
                )
            split = Split(dimension, whole, -(-whole // ranks))
            splits[f"{name}.{parameter}"] = split
            shape = [split.width if at == dimension else size for at, size in enumerate(weight.shape)]
            empty = torch.empty(shape, dtype=weight.dtype, device="meta")
            setattr(module, parameter, nn.Parameter(empty, requires_grad=False))
        _resize(module, style, ranks)
    head = next(name for name, style in styles.items() if style == HEAD)
    return Division(styles, splits, splits[f"{head}.weight"].whole)


def _refuse_heads(config: Any, kind: str, ranks: int) -> None:
    queries = int(config.num_attention_heads)
    keys = int(getattr(config, "num_key_value_heads", None) or queries)
    if keys % ranks or queries % ranks:
        most = math.gcd(keys, queries)
        raise UnsupportedModelError(
            f"{kind} has {queries} query heads and {keys} key and value heads, which {ranks} ranks cannot divide: "
            f"--tensor-parallel-size must divide {most}"
        )


def _styles_of(model: Any, kind: str) -> dict[str, str]:
    """Return the styles of the plan's modules, by their names. UnsupportedModelError if there is no
    plan, or if it has a style that is not computed here."""
    plan: dict[str, str] = dict(model.tp_plan or {})
    found: dict[str, str] = {}
    for name, _ in model.named_modules():
        style = plan.get(_PLACE.sub(".*", name))
        if style is not None and style != _REPLICATED:
            found[name] = style
    head = model.get_output_embeddings()
    outside = (head, model.get_input_embeddings())  # every plan has these two
    if all(any(model.get_submodule(name) is each for each in outside) for name in found):
        raise UnsupportedModelError(
            f"{kind} has no plan of tensor parallelism in transformers, so it needs --tensor-parallel-size 1"
        )
    for name, style in found.items():
        is_head = style == HEAD and model.get_submodule(name) is head
        if not (is_head or style in (COLUMNS, ROWS, TOKENS)):
            raise UnsupportedModelError(
                f"{kind} needs --tensor-parallel-size 1: transformers' plan for it divides {name} as {style!r}, which is "
                "not supported"
            )
    if HEAD not in found.values():
        raise UnsupportedModelError(
            f"{kind} needs --tensor-parallel-size 1: transformers' plan for it does not divide its output matrix"
        )
    return found


def _divided_parameters(module: nn.Module, style: str) -> dict[str, int]:
    """Return the names of a module's divided parameters, and the dimensions in which they are."""
    if style == TOKENS:
        return {"weight": _OUTPUTS}
    if type(module) is not nn.Linear:
        raise UnsupportedModelError(
            f"a {type(module).__name__} cannot be divided among ranks; set --tensor-parallel-size 1"
        )
    if style == ROWS:
        return {"weight": _INPUTS}
    return {"weight": _OUTPUTS} | ({} if module.bias is None else {"bias": _OUTPUTS})


def _resize(module: Any, style: str, ranks: int) -> None:
    """Have a module say the sizes that its parameters have now."""
    if style == TOKENS:
        module.num_embeddings = module.weight.shape[0]
        module.padding_idx = None  # it matters in training only, and may lie in another part
    else:
        module.out_features, module.in_features = module.weight.shape
