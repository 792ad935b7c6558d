"""A target that says exactly what the embedded one says and costs what a large model costs: wider and deeper, its
function unchanged.

Hidden dimensions are padded with zeros that stay zero: nothing writes to them. Added heads and feed-forward rows
compute on random weights, and the columns that would carry their results on are zero; so are the output projections of
added layers. An RMS norm over D instead of d dimensions sees a mean square d/D as large, so its weights are scaled by
sqrt(d/D) and its epsilon by d/D.

Run as ``python -m benchmarks.heavy_target 500m build/heavy-500m``.
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
    """Dimensions of a heavy target; heads keep their size."""

    hidden: int
    feed_forward: int
    layers: int


SIZES = {"500m": Size(1536, 4096, 17), "1b": Size(2048, 5632, 20)}


def build(size: Size, directory: Path) -> int:
    """Write the model to ``directory`` in bfloat16; returns its number of parameters."""
    source = embedded_directory("target")
    small = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    config = AutoConfig.from_pretrained(source)
    old = config.hidden_size
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = size.hidden, size.feed_forward, size.layers
    config.num_attention_heads = config.num_key_value_heads = size.hidden // config.head_dim
    config.rms_norm_eps *= old / size.hidden
    config.layer_types = None
    torch.manual_seed(0)
    heavy = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    shrink = math.sqrt(old / size.hidden)
    with torch.no_grad():
        _embed(heavy.model.embed_tokens.weight, small.model.embed_tokens.weight)
        _embed(heavy.model.norm.weight, small.model.norm.weight * shrink)
        for index, layer in enumerate(heavy.model.layers):
            own = small.model.layers[index] if index < len(small.model.layers) else None
            _widen(layer, own, shrink)
    heavy = heavy.to(torch.bfloat16)
    heavy.save_pretrained(directory)
    copy_all_but_weights(source, directory)
    return int(sum(weight.numel() for weight in heavy.parameters()))


def _widen(layer: Any, own: Any | None, shrink: float) -> None:
    for name in ("input_layernorm", "post_attention_layernorm"):
        weight = getattr(layer, name).weight
        if own is None:
            weight.fill_(1.0)
        else:
            _embed(weight, getattr(own, name).weight * shrink)
    for block, names, output in (
        ("self_attn", ("q_proj", "k_proj", "v_proj"), "o_proj"),
        ("mlp", ("gate_proj", "up_proj"), "down_proj"),
    ):
        heavy = getattr(layer, block)
        getattr(heavy, output).weight.zero_()  # what is added is computed and carried nowhere
        if own is not None:
            small = getattr(own, block)
            for name in names:
                weight, known = getattr(heavy, name).weight, getattr(small, name).weight
                weight[: known.shape[0]].zero_()
                weight[: known.shape[0], : known.shape[1]] = known
            known = getattr(small, output).weight
            getattr(heavy, output).weight[: known.shape[0], : known.shape[1]] = known


def _embed(weight: torch.Tensor, known: torch.Tensor) -> None:
    """Zeros but for what is known."""
    weight.zero_()
    weight[tuple(slice(0, size) for size in known.shape)] = known


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=list(SIZES))
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    count = build(SIZES[options.size], options.directory)
    print(f"{count / 1e6:.0f} M parameters in {options.directory}")


if __name__ == "__main__":
    main()
