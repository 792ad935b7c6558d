"""Random-weight models of a few thousand parameters, saved as transformers directories with the
embedded tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from proving.pairs import perturbed, save
from slipstream.engine.pretrained.vector_math import settle_vector_math
from slipstream.hosting.tokenizer_files import embedded_directory

__all__ = ["EMBEDDED_TOKENIZER", "FAMILIES", "SHAPE", "VOCABULARY_SIZE", "WINDOW", "build", "perturbed", "save"]

EMBEDDED_TOKENIZER = embedded_directory("target") / "tokenizer.json"
"""The one that `save` gives a model."""

VOCABULARY_SIZE = 4096
SHAPE = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,  # else every context says nearly the same
}


WINDOW = 24
"""Sliding window of the families that have one, in tokens."""

_ENDS = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
_MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_TWO_KINDS = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_LATENT = SHAPE | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
_GEMMA = SHAPE | {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": False,  # tied and scaled, the last token's embedding wins: it comes again and again
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "mistral": SHAPE | {"head_dim": 16, "sliding_window": WINDOW},
    "qwen2": SHAPE,
    "qwen3": SHAPE | {"head_dim": 16},
    # A cap this low bends most scores, so that leaving it out shows.
    "gemma2": _GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    "gemma3_text": _GEMMA,
    "phi3": SHAPE,
    "gpt2": {
        "vocab_size": VOCABULARY_SIZE,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 1024,
        "bos_token_id": None,
        "eos_token_id": 2,
        "initializer_range": 0.2,
    },
    "gpt_neox": {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"},
    "opt": {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "ffn_dim": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 1024,
        "init_std": 0.2,
        **_ENDS,
    },
    "mixtral": SHAPE | _EXPERTS,
    "qwen2_moe": SHAPE | _MIXTURE | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": SHAPE | _MIXTURE | {"head_dim": 16},
    "kolibri1": SHAPE
    | _MIXTURE
    | {"head_dim": 16, "shared_expert_intermediate_size": 32, "num_experts_per_tok": 3, "norm_topk_prob": False},
    "olmoe": SHAPE | {"num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": SHAPE | _EXPERTS,
    "deepseek_v2": _LATENT | {"topk_method": "greedy"},
    "deepseek_v3": _LATENT,
    # with attention sinks
    "gpt_oss": SHAPE | _EXPERTS | _TWO_KINDS | {"head_dim": 16, "rope_parameters": {"rope_theta": 10000.0}},
    "granite_swa": SHAPE | _TWO_KINDS,
    "granitemoe_swa": SHAPE | _EXPERTS | _TWO_KINDS,
    "mimo_v2_flash": SHAPE
    | _EXPERTS
    | _TWO_KINDS
    | {"head_dim": 24, "v_head_dim": 16, "num_key_value_heads": 1, "moe_intermediate_size": 32}
    | {"n_group": 1, "topk_group": 1},
    # with chunks of attention, and scores that grow with the position
    "llama4_text": SHAPE
    | {"num_hidden_layers": 4, "head_dim": 16, "attention_chunk_size": WINDOW, "floor_scale": 8, "attn_scale": 0.5}
    | {"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 128},
}
"""transformers' model types that can be served, and what makes each tiny."""


def build(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A tiny model of one of FAMILIES, or of another model type that ``changes`` describe whole."""
    settle_vector_math()  # as loading does
    config = AutoConfig.for_model(family, **{**FAMILIES.get(family, {}), **changes})
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if name.endswith(".sinks"):  # which otherwise hardly show
            torch.nn.init.normal_(weight, std=2.0)
    return model.eval()
