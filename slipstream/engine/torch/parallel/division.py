"""The parameters of a model that each rank holds, by transformers' plan of tensor parallelism.

A plan names modules and their styles. `colwise` divides a linear layer's outputs, and so the heads
of attention; `rowwise` divides the inputs of the layer after it, whose outputs are then parts of a
sum. The embedding and the head are divided by tokens.
"""

from __future__ import annotations

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

_COLUMNS_MULTIPLE = 64
"""Columns of an MLP that ranks do not divide evenly come in multiples of so many. torch adds up a
product of 65 columns in an order that depends on the rows beside it."""

_PLACE = re.compile(r"\.\d+(?=\.|$)")


class Split(NamedTuple):
    """A parameter that the ranks divide along a dimension.

    All parts have one size. Where the ranks do not divide the parameter evenly, a part is filled up
    with zeros: a head or a column of zeros adds nothing to a sum.
    """

    dimension: int
    starts: tuple[int, ...]
    """The place where each rank's part begins, and the size of the whole at the end."""
    width: int
    """The size of each rank's part, zeros included."""

    @classmethod
    def in_blocks(cls, dimension: int, whole: int, ranks: int, multiple: int = 1) -> Split:
        """Return parts of equal sizes, of which only the last ones may be shorter. Sizes that the
        ranks do not divide evenly are rounded up to a ``multiple``."""
        width = whole // ranks
        if whole % ranks:
            width = -(-(width + 1) // multiple) * multiple
        return cls(dimension, tuple([min(rank * width, whole) for rank in range(ranks + 1)]), width)

    @classmethod
    def of_heads(cls, dimension: int, whole: int, ranks: int, size: int) -> Split:
        """Return parts of whole heads of a ``size``, whose numbers differ by one at most."""
        count = whole // size
        starts = tuple([(rank * count + ranks - 1) // ranks * size for rank in range(ranks + 1)])
        return cls(dimension, starts, -(-count // ranks) * size)

    @property
    def whole(self) -> int:
        """The size of the undivided parameter."""
        return self.starts[-1]

    def own(self, rank: int) -> slice:
        """Return the part of the whole parameter that a rank holds."""
        return slice(self.starts[rank], self.starts[rank + 1])


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
    head_count = _head_count(model.config.get_text_config(), kind, ranks)
    styles = _styles_of(model, kind)
    splits: dict[str, Split] = {}
    for name, style in styles.items():
        module = model.get_submodule(name)
        is_attention = "Attention" in type(model.get_submodule(name.rpartition(".")[0])).__name__
        for parameter, dimension in _divided_parameters(module, style).items():
            weight = getattr(module, parameter)
            whole = weight.shape[dimension]
            if is_attention:
                split = Split.of_heads(dimension, whole, ranks, _head_size(name, whole, head_count, kind))
            else:
                split = Split.in_blocks(dimension, whole, ranks, 1 if style in (TOKENS, HEAD) else _COLUMNS_MULTIPLE)
            splits[f"{name}.{parameter}"] = split
            shape = [split.width if at == dimension else size for at, size in enumerate(weight.shape)]
            empty = torch.empty(shape, dtype=weight.dtype, device="meta")
            setattr(module, parameter, nn.Parameter(empty, requires_grad=False))
        _resize(module, style)
    head = next(name for name, style in styles.items() if style == HEAD)
    return Division(styles, splits, splits[f"{head}.weight"].whole)


def _head_count(config: Any, kind: str, ranks: int) -> int:
    """Return the number of key and value heads. Each rank needs one of its own."""
    queries = int(config.num_attention_heads)
    keys = int(getattr(config, "num_key_value_heads", None) or queries)
    if ranks > keys:
        raise UnsupportedModelError(
            f"{kind} has {keys} key and value heads, which {ranks} ranks cannot divide: --tensor-parallel-size must be at "
            f"most {keys}"
        )
    return keys


def _head_size(name: str, whole: int, head_count: int, kind: str) -> int:
    """Return the features of one key head, with its queries."""
    if whole % head_count:
        raise UnsupportedModelError(
            f"{kind} cannot be divided among ranks: {name} has {whole} features, which are not those of {head_count} heads; "
            "set --tensor-parallel-size 1"
        )
    return whole // head_count


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


def _resize(module: Any, style: str) -> None:
    """Have a module say the sizes that its parameters have now."""
    if style == TOKENS:
        module.num_embeddings = module.weight.shape[0]
        module.padding_idx = None  # it matters in training only, and may lie in another part
    else:
        module.out_features, module.in_features = module.weight.shape
