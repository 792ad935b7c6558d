"""What a compiled forward reads of a transformers model: its shape, and its weights as they lie for
products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from slipstream.engine.compiled.decoder import (
    Decoder,
    NotCompiledError,
    alternating,
    in_lanes,
    refuse_odd_pages,
    refuse_odd_sizes,
)
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.records import LAYER
from slipstream.engine.generation_config import parse_generation_config
from slipstream.engine.pretrained import rotary
from slipstream.engine.pretrained.fingerprint import weights_fingerprint
from slipstream.engine.pretrained.loading import DTYPES
from slipstream.engine.pretrained.windows import layer_windows

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Of one shape: RMS norms, rotary positions, a gated feed-forward by silu, at times biases, or
norms of queries and keys."""


def refuse_foreign(config: Any, architecture: str, page_size: int = LANES) -> None:
    """NotCompiledError for a model of another shape, by its config alone, or for pages that are not
    whole blocks."""
    refuse_odd_pages(page_size)
    if architecture not in ARCHITECTURES:
        raise NotCompiledError(f"{architecture} is none of {', '.join(ARCHITECTURES)}")
    if getattr(config, "hidden_act", "silu") != "silu":
        raise NotCompiledError(f"its activation is {config.hidden_act}")
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    refuse_odd_sizes(head_size, config.hidden_size, config.intermediate_size)
    if config.num_attention_heads % config.num_key_value_heads:
        raise NotCompiledError("its key heads do not share its query heads evenly")


class PretrainedDecoder(Decoder):
    """Of a transformers model."""

    def __init__(self, model: Any, generation: Mapping[str, Any], windows: list[int] | None = None) -> None:
        """Take a loaded ``PreTrainedModel`` apart: it cannot compute any more. ``generation`` is
        its generation_config.json, ``windows`` are its layers', by default those that
        `layer_windows` learns. NotCompiledError if compiled forwards would not say what the model
        says."""
        super().__init__()
        config, base = model.config, model.model
        refuse_foreign(config, type(model).__name__)
        windows = layer_windows(model) if windows is None else windows
        self.architecture = type(model).__name__
        self.vocabulary_size = int(model.get_output_embeddings().weight.shape[0])
        self.context_length = rotary.steady_context_length(config, int(config.max_position_embeddings))
        self.generation = parse_generation_config(generation, self.vocabulary_size, config.eos_token_id)
        self.end_token_ids = self.generation.end_token_ids
        self.sampling_defaults, self.length_defaults = self.generation.sampling, self.generation.lengths
        self.dtype = next(name for name, dtype in DTYPES.items() if dtype == model.dtype)
        self.weights_fingerprint = weights_fingerprint(model, self.end_token_ids)
        self.bf16, self.quantised = model.dtype == torch.bfloat16, False
        first = base.layers[0].self_attn
        self.head_size = int(first.head_dim)
        self.head_count = int(config.num_attention_heads)
        self.kv_head_count = int(config.num_key_value_heads)
        self.hidden_size = int(config.hidden_size)
        self.feed_forward = int(config.intermediate_size)
        self.epsilon = float(config.rms_norm_eps)
        self.attention_scale = float(first.scaling)
        self.rotation_scale = float(base.rotary_emb.attention_scaling)
        self.frequencies = base.rotary_emb.inv_freq.float().contiguous()
        if base.embed_tokens.num_embeddings != self.vocabulary_size:
            raise NotCompiledError(
                f"it has {base.embed_tokens.num_embeddings} embeddings for {self.vocabulary_size} tokens"
            )
        if len(self.frequencies) != self.head_size // 2:
            raise NotCompiledError(f"it turns {2 * len(self.frequencies)} of a head's {self.head_size} numbers")
        self.embedding = self._hold(base.embed_tokens.weight.clone())  # or the whole file would stay mapped
        self.final_norm = self._hold(base.norm.weight.float())
        self.head, self.vocabulary_columns = self._matrix(model.lm_head.weight)
        self.layers = np.zeros(len(base.layers), LAYER)
        self.layers["window"] = windows
        for row, layer in zip(self.layers, base.layers, strict=True):
            self._take(row, layer)

    def _take(self, row: Any, layer: Any) -> None:
        """One layer's weights."""
        attention, feed = layer.self_attn, layer.mlp
        given = [attention.q_proj, attention.k_proj, attention.v_proj]
        row["attention_norm"] = self._hold(layer.input_layernorm.weight.float())
        row["feed_norm"] = self._hold(layer.post_attention_layernorm.weight.float())
        row["projection"], _ = self._matrix(torch.cat([each.weight for each in given]))
        row["projection_bias"] = self._bias([each.bias for each in given])
        row["output"], _ = self._matrix(attention.o_proj.weight)
        row["output_bias"] = self._bias([attention.o_proj.bias])
        row["query_norm"], row["key_norm"] = (
            self._hold(getattr(attention, name).weight.float()) if hasattr(attention, name) else 0
            for name in ("q_norm", "k_norm")
        )
        row["gate_up"], _ = self._matrix(alternating(feed.gate_proj.weight, feed.up_proj.weight))
        biases = feed.gate_proj.bias, feed.up_proj.bias
        row["gate_up_bias"] = 0 if biases[0] is None else self._bias([alternating(*biases)])
        row["down"], _ = self._matrix(feed.down_proj.weight)
        row["down_bias"] = self._bias([feed.down_proj.bias])
        for each in (*given, attention.o_proj, feed.gate_proj, feed.up_proj, feed.down_proj):
            each.weight.data = torch.empty(0, dtype=each.weight.dtype)  # what is packed lies twice for one layer only

    def _bias(self, parts: list[Any]) -> int:
        return 0 if parts[0] is None else self._hold(torch.cat([part.float() for part in parts]))

    def _matrix(self, weight: torch.Tensor) -> tuple[int, int]:
        """Where a matrix ``[outputs, inputs]`` lies for products, and how many outputs it has with
        those that fill it up."""
        packed = in_lanes(weight.detach())
        return self._hold(packed), packed.shape[0] * LANES
