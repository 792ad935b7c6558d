"""Layers whose results the ranks put together."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from slipstream.engine.torch.parallel.division import HEAD, ROWS, TOKENS, Division
from slipstream.engine.torch.parallel.rank_group import RankGroup


class SummedLinear(nn.Module):
    """A linear layer of which each rank has some inputs: the sum of the ranks' products, and the
    bias."""

    def __init__(self, linear: nn.Linear, group: RankGroup) -> None:
        super().__init__()
        self.bias = linear.bias
        linear.register_parameter("bias", None)
        self.linear = linear
        self._group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute ``[..., outputs]`` from this rank's ``[..., inputs / ranks]``."""
        total = self._group.sum(self.linear(inputs))
        return total if self.bias is None else total + self.bias


class DividedEmbedding(nn.Module):
    """An embedding of which each rank has some tokens. The other ranks add zeros to a token's
    numbers, which changes none of them."""

    def __init__(self, embedding: nn.Embedding, group: RankGroup) -> None:
        super().__init__()
        self.embedding = embedding
        self._group = group
        self._count = embedding.num_embeddings
        self._first = group.rank * self._count

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return ``[..., size]`` of tokens ``[...]``."""
        places = ids - self._first
        rows = self.embedding(places.clamp(0, self._count - 1))
        is_other = (places < 0) | (places >= self._count)
        return self._group.sum(rows.masked_fill(is_other.unsqueeze(-1), 0))


class GatheredHead(nn.Module):
    """An output matrix of which each rank has some tokens. Rank 0 gets all logits. On the others
    they are zeros."""

    def __init__(self, linear: nn.Linear, group: RankGroup, vocabulary_size: int) -> None:
        super().__init__()
        self.linear = linear
        self._group, self._vocabulary_size = group, vocabulary_size

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits ``[1, rows, vocabulary]``."""
        logits = self._group.concatenate(self.linear(inputs)[0])
        return logits[:, : self._vocabulary_size].unsqueeze(0)


def connect(model: Any, division: Division, group: RankGroup) -> None:
    """Replace the modules of ``model`` whose results need the other ranks."""
    for name, style in division.styles.items():
        if style == ROWS:
            model.set_submodule(name, SummedLinear(model.get_submodule(name), group))
        elif style == TOKENS:
            model.set_submodule(name, DividedEmbedding(model.get_submodule(name), group))
        elif style == HEAD:
            model.set_submodule(name, GatheredHead(model.get_submodule(name), group, division.vocabulary_size))
