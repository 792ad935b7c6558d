"""A tiny EAGLE-3 head of random weights, and what it computes, written out from the paper and the
layout: one matrix of attention, no pages, float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from slipstream.engine.compiled.safetensors_file import rounded
from slipstream.engine.heads.eagle3_config import Eagle3Config, TargetShape, read_eagle3_config
from slipstream.engine.heads.eagle3_tensors import EMBEDDING, OFFSETS, weight_shapes
from slipstream.sampling.blocks import floats_of

__all__ = [
    "HIDDEN",
    "LAYERS",
    "OFFSETS",
    "SHAPE",
    "VOCABULARY",
    "Weights",
    "config_values",
    "plain_chain",
    "random_weights",
    "write",
    "write_random",
]

VOCABULARY, HIDDEN, LAYERS = 64, 32, 6
SHAPE = TargetShape(LAYERS, HIDDEN, VOCABULARY)

Weights = dict[str, np.ndarray]


def config_values(**changes: Any) -> dict[str, Any]:
    """Return a config.json in the ``speculators`` layout. A change to None takes a key away, and
    one of ``layer`` changes keys of the layer."""
    layer = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
    }
    values: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "some/target"}},
        "transformer_layer_config": layer | changes.pop("layer", {}),
        "draft_vocab_size": 40,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "dtype": "float32",
    }
    return {key: value for key, value in (values | changes).items() if value is not None}


def random_weights(config: Eagle3Config, seed: int = 0) -> Weights:
    """Return weights of a head by their newer names, numbers of bfloat16, with an embedding and
    offsets."""
    rng = np.random.default_rng(seed)
    shapes = weight_shapes(config) | {EMBEDDING: (config.vocabulary_size, config.hidden_size)}
    weights = {
        name: (rng.normal(1, 0.2, shape) if len(shape) == 1 else rng.normal(0, shape[-1] ** -0.5, shape)).astype("f4")
        for name, shape in shapes.items()
    }
    weights = {name: floats_of(rounded(weight).view(np.int16)) for name, weight in weights.items()}
    ids = np.sort(rng.permutation(config.vocabulary_size)[: config.draft_vocabulary_size])
    weights[OFFSETS] = ids - np.arange(len(ids))
    return weights


def write(directory: Path, values: dict[str, Any], weights: Weights) -> Path:
    """Write a head's files."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(values))
    save_file(weights, directory / "model.safetensors")
    return directory


def write_random(directory: Path, **changes: Any) -> Path:
    """Write a head of random weights."""
    values = config_values(**changes)
    return write(directory, values, random_weights(read_eagle3_config(values, SHAPE)))


def plain_chain(
    config: Eagle3Config, weights: Weights, states: np.ndarray, tokens: list[int], count: int
) -> list[np.ndarray]:
    """Return the logits, over the draft's vocabulary, of ``count`` greedy guesses after ``tokens``.

    ``states`` ``[len(tokens) - 1, layers * hidden]`` are the target's, joined. Row i has the
    feature of token i and the embedding of token i + 1.
    """
    wide = {name: weight.astype(np.float64) for name, weight in weights.items()}
    ids = np.arange(config.draft_vocabulary_size) + weights[OFFSETS]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        normed: np.ndarray = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.epsilon) * wide[f"{name}.weight"]
        return normed

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        outputs: np.ndarray = x @ wide[f"{name}.weight"].T
        return outputs

    def turn(x: np.ndarray) -> np.ndarray:
        half = config.head_size // 2
        angles = np.arange(len(x))[:, None] / 10000.0 ** (np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    joined = states.astype(np.float64)
    if config.norm_before_fc:
        joined = norm(joined, "input_norm")
    if config.fc_norm:
        parts = np.split(joined, len(config.layer_ids), -1)
        joined = np.concatenate([norm(part, f"fc_norm.{index}") for index, part in enumerate(parts)], -1)
    features, read, said = linear(joined, "fc"), list(tokens), []
    for _ in range(count):
        embedded = wide[EMBEDDING][read[1 : len(features) + 1]]
        normed = norm(features, "layers.0.hidden_norm")
        inputs = np.concatenate([norm(embedded, "layers.0.input_layernorm"), normed], -1)
        heads = {
            name: linear(inputs, f"layers.0.self_attn.{name}_proj").reshape(len(inputs), -1, config.head_size)
            for name in "qkv"
        }
        if config.has_head_norms:
            heads |= {name: norm(heads[name], f"layers.0.self_attn.{name}_norm") for name in "qk"}
        queries, keys, values = turn(heads["q"]), turn(heads["k"]), heads["v"]
        attended = []
        for head in range(config.head_count):
            of = head // (config.head_count // config.kv_head_count)
            scores = queries[-1, head] @ keys[:, of].T / np.sqrt(config.head_size)
            shares = np.exp(scores - scores.max())
            attended.append(shares / shares.sum() @ values[:, of])
        hidden = (normed if config.norm_before_residual else features)[-1]
        hidden = hidden + linear(np.concatenate(attended), "layers.0.self_attn.o_proj")
        inner = norm(hidden, "layers.0.post_attention_layernorm")
        gate = linear(inner, "layers.0.mlp.gate_proj")
        hidden = hidden + linear(
            gate / (1 + np.exp(-gate)) * linear(inner, "layers.0.mlp.up_proj"), "layers.0.mlp.down_proj"
        )
        said.append(linear(norm(hidden, "norm"), "lm_head"))
        read.append(int(ids[said[-1].argmax()]))
        features = np.concatenate([features, [norm(hidden, "norm") if config.norm_output else hidden]])
    return said
