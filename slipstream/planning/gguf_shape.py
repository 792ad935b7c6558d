"""The shape of a model in a GGUF file, by its header."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.engine.gguf_metadata import TensorInfo, read_header
from slipstream.planning.errors import PlanError
from slipstream.planning.shape import KvLayers, ModelShape, Weights


def gguf_shape(path: Path, name: str) -> ModelShape:
    """Return the shape. PlanError if a key is missing; UnsupportedModelError if the file is
    damaged."""
    header = read_header(path)
    keys = _Keys(header.keys, name)
    if header.keys.get("split.count", 0) > 1:
        raise PlanError(
            f"{name} is one of several files; plan with the model's config.json, and a dtype such as q4_k_m"
        )
    hidden, layers, heads = (
        keys.number("embedding_length"),
        keys.number("block_count"),
        keys.number("attention.head_count"),
    )
    kv_heads = keys.each("attention.head_count_kv", heads, layers)
    key_size = keys.number("attention.key_length", hidden // heads)
    value_size = keys.number("attention.value_length", key_size)
    vocabulary = header.keys.get("tokenizer.ggml.tokens") or ()
    return ModelShape(
        name=name,
        family=keys.architecture,
        source=str(path),
        weights=_weights(header.tensors),
        layers=[KvLayers(1, count * (key_size + value_size)) for count in kv_heads if count],
        kv_head_count=math.gcd(*kv_heads),
        head_count=heads,
        hidden_size=hidden,
        query_size=heads * key_size,
        vocabulary_size=len(vocabulary) or keys.number("vocab_size"),
        context_length=keys.number("context_length", 2**20),
        format="gguf",
        expert_count=keys.number("expert_count", 0),
        experts_per_token=keys.number("expert_used_count", 0),
        file_bytes=path.stat().st_size - header.data_start,
    )


class _Keys:
    """Keys of one architecture."""

    def __init__(self, keys: Mapping[str, Any], name: str) -> None:
        self._keys, self._name = keys, name
        self.architecture = str(keys.get("general.architecture"))

    def number(self, key: str, default: int | None = None) -> int:
        value = self._keys.get(f"{self.architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int) or value < (0 if default == 0 else 1):
            raise PlanError(f"{self._name}: the key {self.architecture}.{key} is {value!r}, not a whole number above 0")
        return value

    def each(self, key: str, default: int, count: int) -> Sequence[int]:
        """Return a number for each layer: the file has one number, or a list."""
        value = self._keys.get(f"{self.architecture}.{key}")
        if (
            isinstance(value, list)
            and len(value) == count
            and all(isinstance(one, int) for one in value)
            and any(value)
        ):
            return value
        return [self.number(key, default)] * count


def _weights(tensors: Sequence[TensorInfo]) -> Weights:
    counts = dict.fromkeys(("embedding", "head", "dense", "experts", "small"), 0)
    for tensor in tensors:
        counts[_place(tensor)] += math.prod(tensor.shape)
    return Weights(**counts)


def _place(tensor: TensorInfo) -> str:
    if tensor.name == "token_embd.weight":
        return "embedding"
    if tensor.name == "output.weight":
        return "head"
    if "_exps." in tensor.name and len(tensor.shape) == 3:
        return "experts"
    return "dense" if len(tensor.shape) >= 2 else "small"
