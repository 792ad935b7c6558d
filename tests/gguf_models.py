"""Small GGUF files with random weights, of architectures that are told apart by what stands beside
the projections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gguf
import numpy as np

from benchmarks.llamacpp_models import add_tokenizer, file_type, quantised
from slipstream.hosting.tokenizer_files import embedded_directory

LAYERS, CONTEXT = 2, 512


class Shape(NamedTuple):
    """Sizes of a layer."""

    hidden: int = 1024
    inner: int = 2816
    heads: int = 16
    kv_heads: int = 4
    head_size: int = 64


WIDE = Shape()
SMALL = Shape(128, 256, 4, 2, 32)
"""For what depends on no number."""

SMALL_K = Shape(256, 512, 4, 2, 64)
"""The same with rows of whole groups of 256."""


def write(
    path: Path,
    architecture: str,
    weights: str = "BF16",
    experts: int = 0,
    nan_token: int | None = None,
    *,
    says: Mapping[str, Any] = MappingProxyType({}),
    kinds: Mapping[str, str] = MappingProxyType({}),
    odd: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    tensors_per_file: int = 0,
    shape: Shape = WIDE,
) -> Path:
    """A llama, gemma, qwen2 (biases) or qwen3 (norms of queries and keys), of wide layers but few,
    with the embedded pair's tokenizer; with ``experts`` a mixture of as many. After ``nan_token``
    nothing is a number.

    It also ``says`` other keys; ``kinds`` names matrices that are of other types, and ``odd``
    tensors of shapes that do not fit the keys, rope_freqs.weight among them; with
    ``tensors_per_file`` it is split, and the first file's path is returned.
    """
    embedded = embedded_directory("target")
    config = json.loads((embedded / "config.json").read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = gguf.GGUFWriter(str(path), architecture, split_max_tensors=tensors_per_file)
    _describe(writer, weights, experts, config["vocab_size"], shape)
    add_tokenizer(writer, embedded, config)
    for key, value in says.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](key, value)
    tensors = _Tensors(writer, weights, kinds, odd)
    if "rope_freqs.weight" in odd:
        tensors.vector("rope_freqs.weight", 0)
    tensors.matrix("token_embd", config["vocab_size"], shape.hidden, nan_row=nan_token)
    if nan_token is not None or "output" in kinds:  # else the embedding is the output matrix too
        tensors.matrix("output", config["vocab_size"], shape.hidden)
    tensors.vector("output_norm.weight", shape.hidden)
    for layer in range(LAYERS):
        _add_attention(tensors, f"blk.{layer}", architecture, shape)
        _add_feed_forward(tensors, f"blk.{layer}", experts, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0] if tensors_per_file else path


class _Tensors:
    """Random ones, added to a file in ``kind``, but for those that ``kinds`` names, and
    but for shapes that are ``odd``."""

    def __init__(self, writer: Any, kind: str, kinds: Mapping[str, str], odd: Mapping[str, tuple[int, ...]]) -> None:
        self._writer = writer
        self._kind, self._kinds, self._odd = kind, kinds, odd
        self._rng = np.random.default_rng(18)

    def matrix(self, name: str, *shape: int, nan_row: int | None = None) -> None:
        shape = self._odd.get(f"{name}.weight", shape)
        values = self._rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        if nan_row is not None:
            values[nan_row] = np.nan
        kind = gguf.GGMLQuantizationType[self._kinds.get(name, self._kind)]
        self._writer.add_tensor(f"{name}.weight", quantised(values, kind), raw_dtype=kind)

    def vector(self, name: str, size: int) -> None:
        self._writer.add_tensor(name, self._rng.normal(1, 0.1, self._odd.get(name, (size,))).astype(np.float32))


def _describe(writer: Any, weights: str, experts: int, vocabulary_size: int, shape: Shape) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(vocabulary_size)
    writer.add_file_type(file_type(weights))
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(1)


def _add_attention(tensors: _Tensors, block: str, architecture: str, shape: Shape) -> None:
    for part, rows in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        tensors.matrix(f"{block}.attn_{part}", rows * shape.head_size, shape.hidden)
        if architecture == "qwen2":
            tensors.vector(f"{block}.attn_{part}.bias", rows * shape.head_size)
        if architecture == "qwen3" and part != "v":
            tensors.vector(f"{block}.attn_{part}_norm.weight", shape.head_size)
    tensors.matrix(f"{block}.attn_output", shape.hidden, shape.heads * shape.head_size)
    tensors.vector(f"{block}.attn_norm.weight", shape.hidden)


def _add_feed_forward(tensors: _Tensors, block: str, experts: int, shape: Shape) -> None:
    kinds, count = ("_exps", (experts,)) if experts else ("", ())
    tensors.matrix(f"{block}.ffn_gate{kinds}", *count, shape.inner, shape.hidden)
    tensors.matrix(f"{block}.ffn_up{kinds}", *count, shape.inner, shape.hidden)
    tensors.matrix(f"{block}.ffn_down{kinds}", *count, shape.hidden, shape.inner)
    if experts:
        tensors.matrix(f"{block}.ffn_gate_inp", experts, shape.hidden)
    tensors.vector(f"{block}.ffn_norm.weight", shape.hidden)
