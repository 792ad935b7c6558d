"""A model that says exactly what an embedded one says and costs what a large model costs: wider and
deeper, its function unchanged.

Hidden dimensions are padded with zeros that stay zero: nothing writes to them. Added heads and
feed-forward rows compute on random weights, and the columns that would carry their results on are
zero; so are the output projections of added layers. Where several query heads share a key head,
each known head is the first of its group. An RMS norm over D instead of d dimensions sees a mean
square d/D as large, so its weights are scaled by sqrt(d/D) and its epsilon by d/D.

Run as ``python -m benchmarks.heavy_target 500m build/heavy-500m``; with real models' vocabulary, of
one that `benchmarks.wide_vocabulary` has made:
``... llama-8b build/heavy-8b --source build/wide-pair/target --device cuda``.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.weights import copy_all_but_weights
from slipstream.hosting.tokenizer_files import embedded_directory


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions of a heavy model; heads keep their size."""

    hidden: int
    feed_forward: int
    layers: int
    queries_per_key: int = 1


SIZES = {
    "130m": Size(1024, 2816, 10),
    "500m": Size(1536, 4096, 17),
    "1b": Size(2048, 5632, 20),
    "llama-1b": Size(2048, 8192, 16, 4),
    "llama-8b": Size(4096, 14336, 32, 4),  # with 64 heads of 64 instead of 32 of 128: as many numbers
}


def build(size: Size, directory: Path, source: Path | None = None, device: str = "cpu") -> int:
    """Write the model to ``directory`` in bfloat16, from ``source`` or the embedded target. Returns
    its number of parameters."""
    source = source or embedded_directory("target")
    small = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to(device)
    config = AutoConfig.from_pretrained(source)
    old = config.hidden_size
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = size.hidden, size.feed_forward, size.layers
    config.num_attention_heads = size.hidden // config.head_dim
    config.num_key_value_heads = config.num_attention_heads // size.queries_per_key
    config.rms_norm_eps *= old / size.hidden
    config.layer_types = None
    torch.manual_seed(0)
    with torch.device(device):
        heavy = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shrink = math.sqrt(old / size.hidden)
    with torch.no_grad():
        _embed(heavy.model.embed_tokens.weight, small.model.embed_tokens.weight)
        if not config.tie_word_embeddings:
            _embed(heavy.lm_head.weight, small.lm_head.weight)
        _embed(heavy.model.norm.weight, small.model.norm.weight * shrink)
        for index, layer in enumerate(heavy.model.layers):
            own = small.model.layers[index] if index < len(small.model.layers) else None
            _widen(layer, own, shrink, size.queries_per_key)
    heavy.save_pretrained(directory)
    copy_all_but_weights(source, directory)
    return int(sum(weight.numel() for weight in heavy.parameters()))


def _widen(layer: Any, own: Any | None, shrink: float, queries_per_key: int) -> None:
    for name in ("input_layernorm", "post_attention_layernorm"):
        weight = getattr(layer, name).weight
        if own is None:
            weight.fill_(1.0)
        else:
            _embed(weight, getattr(own, name).weight * shrink)
    size = layer.self_attn.head_dim
    for block, names, output in (
        ("self_attn", ("q_proj", "k_proj", "v_proj"), "o_proj"),
        ("mlp", ("gate_proj", "up_proj"), "down_proj"),
    ):
        heavy = getattr(layer, block)
        getattr(heavy, output).weight.zero_()  # what is added is computed and carried nowhere
        if own is None:
            continue
        small = getattr(own, block)
        for name in names:
            known = getattr(small, name).weight
            places = _places(known.shape[0], queries_per_key if name == "q_proj" else 1, size, known.device)
            rows = getattr(heavy, name).weight.new_zeros(known.shape[0], getattr(heavy, name).weight.shape[1])
            rows[:, : known.shape[1]] = known
            getattr(heavy, name).weight[places] = rows
        known = getattr(small, output).weight
        places = _places(known.shape[1], queries_per_key if block == "self_attn" else 1, size, known.device)
        columns = getattr(heavy, output).weight.new_zeros(getattr(heavy, output).weight.shape[0], known.shape[1])
        columns[: known.shape[0]] = known
        getattr(heavy, output).weight[:, places] = columns


def _places(count: int, spacing: int, size: int, device: torch.device) -> torch.Tensor:
    """Return the indices of ``count`` features inside whole heads of ``size``, one feature every
    ``spacing``."""
    features = torch.arange(count, device=device)
    return features // size * size * spacing + features % size


def _embed(weight: torch.Tensor, known: torch.Tensor) -> None:
    """Return zeros with the known values in place."""
    weight.zero_()
    weight[tuple(slice(0, size) for size in known.shape)] = known


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=list(SIZES))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--source", type=Path, help="the model it answers as; the embedded target if left out")
    parser.add_argument("--device", default="cpu", help="torch device that builds it")
    options = parser.parse_args()
    count = build(SIZES[options.size], options.directory, options.source, options.device)
    print(f"{count / 1e6:.0f} M parameters in {options.directory}")


if __name__ == "__main__":
    main()
