"""Small GGUF files with random weights, of architectures that are told apart by what stands beside the projections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llamacpp_models import add_tokenizer
from slipstream.hosting.tokenizer_files import embedded_directory

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_SIZE, LAYERS, CONTEXT = 1024, 2816, 16, 4, 64, 2, 512


def write(path: Path, architecture: str, weights: str = "BF16", experts: int = 0, nan_token: int | None = None) -> Path:
    """A llama, gemma, qwen2 (biases) or qwen3 (norms of queries and keys), of wide layers but few, with the embedded pair's
    tokenizer; with ``experts`` a mixture of as many. After ``nan_token`` nothing is a number."""
    import gguf

    embedded = embedded_directory("target")
    config = json.loads((embedded / "config.json").read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = gguf.GGUFWriter(str(path), architecture)
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
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if weights == "F32" else f"MOSTLY_{weights}"])
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(1)
    add_tokenizer(writer, embedded, config)
    kind, rng = gguf.GGMLQuantizationType[weights], np.random.default_rng(18)

    def matrix(name: str, *shape: int) -> None:
        values = rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        if name == "token_embd" and nan_token is not None:
            values[nan_token] = np.nan
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)

    def vector(name: str, size: int) -> None:
        writer.add_tensor(name, rng.normal(1, 0.1, size).astype(np.float32))

    matrix("token_embd", config["vocab_size"], HIDDEN)
    if nan_token is not None:  # else the embedding is the output matrix too
        matrix("output", config["vocab_size"], HIDDEN)
    vector("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for part, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            matrix(f"{block}.attn_{part}", rows * HEAD_SIZE, HIDDEN)
            if architecture == "qwen2":
                vector(f"{block}.attn_{part}.bias", rows * HEAD_SIZE)
            if architecture == "qwen3" and part != "v":
                vector(f"{block}.attn_{part}_norm.weight", HEAD_SIZE)
        matrix(f"{block}.attn_output", HIDDEN, HEADS * HEAD_SIZE)
        kinds, count = ("_exps", (experts,)) if experts else ("", ())
        matrix(f"{block}.ffn_gate{kinds}", *count, INNER, HIDDEN)
        matrix(f"{block}.ffn_up{kinds}", *count, INNER, HIDDEN)
        matrix(f"{block}.ffn_down{kinds}", *count, HIDDEN, INNER)
        if experts:
            matrix(f"{block}.ffn_gate_inp", experts, HIDDEN)
        vector(f"{block}.attn_norm.weight", HIDDEN)
        vector(f"{block}.ffn_norm.weight", HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
