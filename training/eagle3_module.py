"""An EAGLE-3 head in torch (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large
Language Models via Training-Time Test").

::

    the target's hidden states before three layers, at token i --fc--> feature of i
    [normed embedding of token i + 1, normed feature of i] --> attention and feed-forward --> hidden
    hidden --norm, lm_head--> logits of token i + 2, over a part of the vocabulary
    hidden --> takes the place of the feature of i + 1 in the next step

It computes rows. Keys and values of other rows are the caller's business: a server keeps them in
pages, and training has all rows at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from slipstream.engine.heads.eagle3_config import Eagle3Config


class Norm(nn.Module):
    """Root mean square norm, computed in float32 as Llama's."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Norm the last dimension."""
        singles = rows.float()
        normed = singles * torch.rsqrt(singles.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * normed.to(rows.dtype)


class Attention(nn.Module):
    """The projections of the layer's attention, which reads an embedding beside a feature."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        inputs, size = 2 * config.hidden_size, config.head_size
        self.q_proj = nn.Linear(inputs, config.head_count * size, bias=False)
        self.k_proj = nn.Linear(inputs, config.kv_head_count * size, bias=False)
        self.v_proj = nn.Linear(inputs, config.kv_head_count * size, bias=False)
        self.o_proj = nn.Linear(config.head_count * size, config.hidden_size, bias=False)
        if config.has_head_norms:
            self.q_norm, self.k_norm = Norm(size, config.epsilon), Norm(size, config.epsilon)


class FeedForward(nn.Module):
    """Llama's feed-forward."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.feed_forward, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.feed_forward, bias=False)
        self.down_proj = nn.Linear(config.feed_forward, config.hidden_size, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute rows."""
        result: torch.Tensor = self.down_proj(F.silu(self.gate_proj(rows)) * self.up_proj(rows))
        return result


class Layer(nn.Module):
    """The head's one decoder layer, without its attention."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.epsilon)
        self.hidden_norm = Norm(config.hidden_size, config.epsilon)
        self.post_attention_layernorm = Norm(config.hidden_size, config.epsilon)
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)


class Said(NamedTuple):
    """The results of a step for each row."""

    logits: torch.Tensor
    """``[rows, draft vocabulary]``."""
    feature: torch.Tensor
    """``[rows, hidden]``: takes the place of the target's feature in the next step."""


class Eagle3(nn.Module):
    """The head's modules, named as ``speculators`` names its tensors."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        features = len(config.layer_ids)
        self.embed_tokens = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.fc = nn.Linear(features * config.target_hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(config)])
        self.norm = Norm(config.hidden_size, config.epsilon)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocabulary_size, bias=False)
        if config.norm_before_fc:
            self.input_norm = Norm(features * config.target_hidden_size, config.epsilon)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(config.target_hidden_size, config.epsilon) for _ in range(features))
        self._rotary = LlamaRotaryEmbedding(_rotary_config(config))

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """Return the features of rows ``[rows, hidden]``. ``states``: the target's hidden states
        before the chosen layers, joined ``[rows, layers * target's hidden]``."""
        if self.config.norm_before_fc:
            states = self.input_norm(states)
        if self.config.fc_norm:
            parts = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return cast(torch.Tensor, self.fc(states))

    def turns(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines ``[rows, 1, size]`` of int64 positions ``[rows]``."""
        cosines, sines = self._rotary(self.norm.weight, positions.unsqueeze(0))
        return cosines[0].unsqueeze(1), sines[0].unsqueeze(1)

    def enter(self, tokens: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention's inputs ``[rows, 2 * hidden]`` and the residual. Row i has token
        i + 1 and the feature of token i."""
        layer = self._layer
        normed = layer.hidden_norm(features)
        inputs = torch.cat([layer.input_layernorm(self.embed_tokens(tokens)), normed], dim=-1)
        return inputs, normed if self.config.norm_before_residual else features

    def keep(self, inputs: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows' keys, turned, and values: each ``[rows, kv heads, size]``."""
        attention = self._layer.self_attn
        keys = self._in_heads(attention.k_proj(inputs))
        if self.config.has_head_norms:
            keys = attention.k_norm(keys)
        return turned(keys, turns), self._in_heads(attention.v_proj(inputs))

    def ask(self, inputs: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the rows' queries ``[rows, heads, size]``, turned by their positions."""
        attention = self._layer.self_attn
        queries = self._in_heads(attention.q_proj(inputs))
        if self.config.has_head_norms:
            queries = attention.q_norm(queries)
        return turned(queries, turns)

    def leave(self, attended: torch.Tensor, residual: torch.Tensor) -> Said:
        """Return what the rows say. ``attended``: ``[rows, heads * size]``."""
        layer = self._layer
        hidden = residual + layer.self_attn.o_proj(attended)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        normed = self.norm(hidden)
        return Said(self.lm_head(normed), normed if self.config.norm_output else hidden)

    @property
    def scaling(self) -> float:
        """Factor of a query's product with a key."""
        return float(self.config.head_size**-0.5)

    @property
    def _layer(self) -> Layer:
        return cast(Layer, self.layers[0])

    def _in_heads(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(*rows.shape[:-1], -1, self.config.head_size)


def turned(rows: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return queries or keys ``[rows, heads, size]`` turned by their positions (Su et al. 2021)."""
    cosines, sines = turns
    first, second = rows.chunk(2, dim=-1)
    return rows * cosines + torch.cat([-second, first], dim=-1) * sines


def _rotary_config(config: Eagle3Config) -> LlamaConfig:
    rotary: Mapping[str, Any] = config.rotary
    return LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.head_count,
        head_dim=config.head_size,
        rope_parameters=dict(rotary),
    )
