"""The rows of an EAGLE-3 head (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large
Language Models via Training-Time Test"). NumPy alone, in float32.

::

    the target's hidden states before three layers, at token i --fc--> feature of i
    [normed embedding of token i + 1, normed feature of i] --> attention and feed-forward --> hidden
    hidden --norm, lm_head--> logits of token i + 2, over a part of the vocabulary
    hidden --> takes the place of the feature of i + 1 in the next step
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from slipstream.engine.compiled.frequencies import rotary_frequencies
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.heads.eagle3_config import Eagle3Config
from slipstream.engine.heads.matrix import Matrix, normed, silu, turned
from slipstream.sampling.kernel import Floats32

Turns = tuple[Floats32, Floats32]
"""Cosines and sines ``[rows, 1, size / 2]`` of rows' positions."""


class Entered(NamedTuple):
    """Rows on their way through the layer."""

    inputs: Floats32
    """``[rows, 2 * hidden]``: what attention reads."""
    residual: Floats32
    """``[rows, hidden]``."""


class Said(NamedTuple):
    """What a step says of each row."""

    logits: Floats32
    """``[rows, draft vocabulary]``."""
    features: Floats32
    """``[rows, hidden]``: they take the place of the target's features in the next step."""


class Eagle3Layer:
    """The head's weights. Keys and values of other rows are the caller's business."""

    def __init__(self, config: Eagle3Config, weights: Mapping[str, Floats32]) -> None:
        """``weights`` are named as `slipstream.engine.heads.eagle3_tensors.weight_shapes` names
        them, with the embedding."""
        self.config = config
        self._weights = weights
        attention = [weights[f"layers.0.self_attn.{name}_proj.weight"] for name in "qkv"]
        self._queries, self._kept = Matrix(attention[0]), Matrix(np.concatenate(attention[1:]))
        self._fuse, self._output = Matrix(weights["fc.weight"]), Matrix(weights["layers.0.self_attn.o_proj.weight"])
        gates = [weights[f"layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up")]
        self._gates, self._down = Matrix(np.concatenate(gates)), Matrix(weights["layers.0.mlp.down_proj.weight"])
        self._head = Matrix(weights["lm_head.weight"])
        frequencies = rotary_frequencies(config.rotary, config.head_size)
        if frequencies is None:
            raise UnsupportedModelError(f"the EAGLE-3 head's rope_parameters are not known here: {dict(config.rotary)}")
        self._frequencies: Floats32 = frequencies

    def fuse(self, states: Floats32) -> Floats32:
        """Return the features ``[rows, hidden]`` of the target's hidden states before the chosen
        layers, joined ``[rows, layers * target's hidden]``."""
        config = self.config
        if config.norm_before_fc:
            states = self._normed(states, "input_norm")
        if config.fc_norm:
            parts = np.split(states, len(config.layer_ids), axis=-1)
            states = np.concatenate(
                [self._normed(part, f"fc_norm.{index}") for index, part in enumerate(parts)], axis=-1
            )
        return self._fuse.times(states)

    def turns(self, positions: np.ndarray) -> Turns:
        """Return the turns of rows at these positions."""
        angles = (positions.astype(np.float32)[:, np.newaxis] * self._frequencies)[:, np.newaxis]
        return np.cos(angles), np.sin(angles)

    def enter(self, tokens: np.ndarray, features: Floats32) -> Entered:
        """Begin rows: each has the feature of a token and the id of the token after it."""
        embeddings: Floats32 = self._weights["embed_tokens.weight"][tokens]
        hidden = self._normed(features, "layers.0.hidden_norm")
        inputs = np.concatenate([self._normed(embeddings, "layers.0.input_layernorm"), hidden], axis=-1)
        return Entered(inputs, hidden if self.config.norm_before_residual else features)

    def keep(self, inputs: Floats32, turns: Turns) -> tuple[Floats32, Floats32]:
        """Return rows' keys, turned, and values: each ``[rows, key heads, size]``."""
        kept = self._kept.times(inputs).reshape(len(inputs), 2, self.config.kv_head_count, self.config.head_size)
        keys, values = kept[:, 0], kept[:, 1]
        if self.config.has_head_norms:
            keys = self._normed(keys, "layers.0.self_attn.k_norm")
        return turned(keys, turns), values

    def ask(self, inputs: Floats32, turns: Turns) -> Floats32:
        """Return rows' queries, turned: ``[rows, heads, size]``."""
        queries = self._queries.times(inputs).reshape(len(inputs), self.config.head_count, self.config.head_size)
        if self.config.has_head_norms:
            queries = self._normed(queries, "layers.0.self_attn.q_norm")
        return turned(queries, turns)

    def leave(self, attended: Floats32, residual: Floats32) -> Said:
        """End rows, which have ``attended`` to ``[rows, heads * size]``."""
        hidden: Floats32 = residual + self._output.times(attended)
        gates = self._gates.times(self._normed(hidden, "layers.0.post_attention_layernorm"))
        gate, up = np.split(gates, 2, axis=-1)
        hidden = hidden + self._down.times(silu(gate) * up)
        last = self._normed(hidden, "norm")
        return Said(self._head.times(last), last if self.config.norm_output else hidden)

    def _normed(self, rows: Floats32, name: str) -> Floats32:
        return normed(rows, self._weights[f"{name}.weight"], self.config.epsilon)
