"""Finds the keys of a config.json that transformers' class of its model type does not read.

transformers keeps such keys and computes without them, and so does this service. What they would
have changed is then lost silently, so they are named at start.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from slipstream.engine.checkpoint import CONFIG, told_of_unread
from slipstream.engine.generation_config_keys import WITHOUT_EFFECT
from slipstream.engine.model_fingerprint import NOT_IN_LOGITS
from slipstream.engine.pretrained.neutral_keys import ReadKeys

_WORD = re.compile(r"""\b(?:config|self)\.(\w+)|["'](\w+)["']""")

_CONVERTED = {"rope_theta", "rope_scaling", "partial_rotary_factor"}
"""Keys that every config class with rotary positions makes rope_parameters of."""

_READ_BY_ALL = {"is_causal", "per_layer_config"}

_WITHOUT_NUMBERS = (
    NOT_IN_LOGITS
    | WITHOUT_EFFECT
    | {
        # which class it is, and whose tokenizer
        "model_type",
        "tokenizer_class",
        "processor_class",
        "is_decoder",
        "is_encoder_decoder",
        "add_cross_attention",
        "cross_attention_hidden_size",
        "tie_encoder_decoder",
        "auto_map",
        # how it is run or trained
        "_attn_implementation",
        "_attn_implementation_autoset",
        "attn_implementation",
        "use_flash_attn",
        "use_cache_quantization",
        "use_bfloat16",
        "torchscript",
        "gradient_checkpointing",
        "pretraining_tp",
        "use_return_dict",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "rotary_embedding_base_scale",
        "training_args",
        "aux_loss_alpha",
        "seq_aux",
        "ep_size",
        "layerdrop",
        "attention_softmax_in_fp32",
        "scale_attention_softmax_in_fp32",
        "masked_softmax_fusion",
        "skip_bias_add",
        "skip_bias_add_qkv",
        # what other keys say too
        "n_ctx",
        "is_llama_config",
        "prefix",
        "sep_token_id",
        "unk_token_id",
        # who made it
        "license",
        "finetuning_task",
        "num_labels",
        "unsloth_version",
        "unsloth_fixed",
        "transformers.js_config",
        # settings for one task of many, which a caller has to ask for
        "task_specific_params",
    }
)


def told_of_config(directory: Path, model: Any) -> list[str]:
    """Return what is to be told of a directory's config.json, which ``model`` was loaded from."""
    values = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    config, kind = model.config, type(model)
    told = []
    unread = unread_keys(values, model)
    if unread:
        told.append(told_of_unread(kind.__name__, unread))
    names = values.get("architectures") or [kind.__name__]
    if kind.__name__ not in names:
        told.append(
            f"names {', '.join(map(str, names))}, but its model_type {config.model_type!r} stands for {kind.__name__}, "
            "as which it is served"
        )
    return told


def unread_keys(values: Mapping[str, Any], model: Any) -> list[str]:
    """Return the keys of ``values`` that neither the class of ``model`` nor its config's mentions,
    and that would matter."""
    config = model.config
    names = {field.name for field in fields(config)} | set(config.attribute_map)
    known = names | set(config.sub_configs) | _READ_BY_ALL
    if hasattr(config, "rope_parameters"):
        known |= _CONVERTED
    unknown = sorted(
        key for key, value in values.items() if value is not None and key not in known and key not in _WITHOUT_NUMBERS
    )
    if not unknown:
        return []
    source = _source_of(type(config), type(model))
    dropped = set(GenerationConfig().to_dict())  # of how to generate: transformers reads that of its own file alone
    words = {attribute or text for attribute, text in _WORD.findall(source)} - dropped
    read = ReadKeys(config, names, source, [name for name, _ in model.named_parameters()])
    return [key for key in unknown if key not in words and not read.is_neutral(key, values[key])]


def _source_of(*classes: type) -> str:
    """Return the modules that classes and what they inherit from transformers are defined in."""
    modules = {
        base.__module__
        for each in classes
        for base in each.__mro__
        if base.__module__.startswith("transformers.models.")
    }
    return "\n".join(inspect.getsource(sys.modules[module]) for module in sorted(modules))
