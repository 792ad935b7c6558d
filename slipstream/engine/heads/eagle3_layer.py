"""The rows of an EAGLE-3 head (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large
Language Models via Training-Time Test").

::

    the target's hidden states before three layers, at token i --fc--> feature of i
    [normed embedding of token i + 1, normed feature of i] --> attention and feed-forward --> hidden
    hidden --norm, lm_head--> logits of token i + 2, over a part of the vocabulary
    hidden --> takes the place of the feature of i + 1 in the next step
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slipstream.engine.compiled.frequencies import rotary_frequencies
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.heads.eagle3_config import Eagle3Config
from slipstream.engine.heads.eagle3_tensors import EMBEDDING, OUTPUT
from slipstream.engine.heads.matrix import Matrix, normed, turned
from slipstream.sampling.kernel import Floats32


class Eagle3Layer:
    """The head's weights. What rows attend to is the caller's business."""

    def __init__(self, config: Eagle3Config, weights: Mapping[str, Floats32]) -> None:
        """``weights`` are named as `slipstream.engine.heads.eagle3_tensors.weight_shapes` names
        them, with the embedding."""
        _refuse_odd_sizes(config)
        self.config = config
        self.weights = {name: np.ascontiguousarray(weight) for name, weight in weights.items() if weight.ndim == 1}
        self.embedding: Floats32 = np.ascontiguousarray(weights[EMBEDDING])
        attention = [weights[f"layers.0.self_attn.{name}_proj.weight"] for name in "qkv"]
        gates = [weights[f"layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up")]
        self._fuse, self._kept = Matrix(weights["fc.weight"]), Matrix(np.concatenate(attention[1:]))
        self.matrices = {
            "attention": Matrix(np.concatenate(attention)),
            "output": Matrix(weights["layers.0.self_attn.o_proj.weight"]),
            "gates": Matrix(np.concatenate(gates)),
            "down": Matrix(weights["layers.0.mlp.down_proj.weight"]),
            "head": Matrix(weights[OUTPUT]),
        }
        """The matrices that `slipstream.engine.heads.eagle3_step.MATRICES` names."""
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

    def turns(self, positions: np.ndarray) -> Floats32:
        """Return the cosines and then the sines ``[..., head size]`` of positions ``[...]``."""
        angles = positions.astype(np.float32)[..., np.newaxis] * self._frequencies
        both: Floats32 = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
        return both

    def enter(self, tokens: np.ndarray, features: Floats32) -> Floats32:
        """Return attention's inputs ``[rows, 2 * hidden]``: each row has the feature of a token and
        the id of the token after it."""
        embeddings = self._normed(self.embedding[tokens], "layers.0.input_layernorm")
        return np.concatenate([embeddings, self._normed(features, "layers.0.hidden_norm")], axis=-1)

    def keep(self, inputs: Floats32, turns: Floats32) -> tuple[Floats32, Floats32]:
        """Return rows' keys, turned, and values: each ``[rows, key heads, size]``. ``turns``:
        ``[rows, head size]``."""
        kept = self._kept.times(inputs).reshape(len(inputs), 2, self.config.kv_head_count, self.config.head_size)
        keys, values = kept[:, 0], kept[:, 1]
        if self.config.has_head_norms:
            keys = self._normed(keys, "layers.0.self_attn.k_norm")
        return turned(keys, turns), values

    def _normed(self, rows: Floats32, name: str) -> Floats32:
        return normed(rows, self.weights[f"{name}.weight"], self.config.epsilon)


def _refuse_odd_sizes(config: Eagle3Config) -> None:
    sizes = {"hidden_size": config.hidden_size, "intermediate_size": config.feed_forward, "head_dim": config.head_size}
    for key, size in sizes.items():
        if size % LANES:
            raise UnsupportedModelError(f"the EAGLE-3 head's {key} is {size}, and must be a multiple of {LANES}")
