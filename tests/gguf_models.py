"""Small GGUF files with random weights, of architectures that are told apart by what stands beside the projections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from benchmarks.llamacpp_models import add_tokenizer
from slipstream.hosting.tokenizer_files import embedded_directory

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_SIZE, LAYERS, CONTEXT = 1024, 2816, 16, 4, 64, 2, 512


def write(path: Path, architecture: str, weights: str = "BF16", experts: int = 0, nan_token: int | None = None) -> Path:
    """A llama, gemma, qwen2 (biases) or qwen3 (norms of queries and keys), of wide layers but few, with the embedded pair's
    tokenizer; with ``experts`` a mixture of as many. After ``nan_token`` nothing is a number."""
    embedded = embedded_directory("target")
    config = json.loads((embedded / "config.json").read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = gguf.GGUFWriter(str(path), architecture)
    _describe(writer, weights, experts, config["vocab_size"])
    add_tokenizer(writer, embedded, config)
    tensors = _Tensors(writer, gguf.GGMLQuantizationType[weights])
    tensors.matrix("token_embd", config["vocab_size"], HIDDEN, nan_row=nan_token)
    if nan_token is not None:  # else the embedding is the output matrix too
        tensors.matrix("output", config["vocab_size"], HIDDEN)
    tensors.vector("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        _add_attention(tensors, f"blk.{layer}", architecture)
        _add_feed_forward(tensors, f"blk.{layer}", experts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class _Tensors:
    """Random ones, added to a file in ``kind``."""

    def __init__(self, writer: Any, kind: Any) -> None:
        self._writer = writer
        self._kind = kind
        self._rng = np.random.default_rng(18)

    def matrix(self, name: str, *shape: int, nan_row: int | None = None) -> None:
        values = self._rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        if nan_row is not None:
            values[nan_row] = np.nan
        self._writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, self._kind), raw_dtype=self._kind)

    def vector(self, name: str, size: int) -> None:
        self._writer.add_tensor(name, self._rng.normal(1, 0.1, size).astype(np.float32))


def _describe(writer: Any, weights: str, experts: int, vocabulary_size: int) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(vocabulary_size)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if weights == "F32" else f"MOSTLY_{weights}"])
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(1)


def _add_attention(tensors: _Tensors, block: str, architecture: str) -> None:
    for part, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        tensors.matrix(f"{block}.attn_{part}", rows * HEAD_SIZE, HIDDEN)
        if architecture == "qwen2":
            tensors.vector(f"{block}.attn_{part}.bias", rows * HEAD_SIZE)
        if architecture == "qwen3" and part != "v":
            tensors.vector(f"{block}.attn_{part}_norm.weight", HEAD_SIZE)
    tensors.matrix(f"{block}.attn_output", HIDDEN, HEADS * HEAD_SIZE)
    tensors.vector(f"{block}.attn_norm.weight", HIDDEN)


def _add_feed_forward(tensors: _Tensors, block: str, experts: int) -> None:
    kinds, count = ("_exps", (experts,)) if experts else ("", ())
    tensors.matrix(f"{block}.ffn_gate{kinds}", *count, INNER, HIDDEN)
    tensors.matrix(f"{block}.ffn_up{kinds}", *count, INNER, HIDDEN)
    tensors.matrix(f"{block}.ffn_down{kinds}", *count, HIDDEN, INNER)
    if experts:
        tensors.matrix(f"{block}.ffn_gate_inp", experts, HIDDEN)
    tensors.vector(f"{block}.ffn_norm.weight", HIDDEN)
