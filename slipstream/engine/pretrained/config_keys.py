"""Finds the keys of a config.json that transformers' class of its model type does not read.

transformers keeps such keys and computes without them, and so does this service. What they would have changed is then lost
silently, so they are named at start.
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

from slipstream.engine.checkpoint import CONFIG
from slipstream.engine.generation_keys import WITHOUT_EFFECT
from slipstream.engine.pretrained.fingerprint import NOT_IN_LOGITS

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
        "classifier_dropout",
        "embedding_dropout",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "rotary_embedding_base_scale",
        "head_dropout",
        "training_args",
        "activation_dropout",
        "layerdrop",
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
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


def told_of_config(directory: Path, config: Any, kind: type) -> list[str]:
    """What is to be told of a directory's config.json that is served as a ``kind``."""
    values = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    told = []
    unread = unread_keys(values, config, kind)
    if unread:
        told.append(
            f"has keys that transformers' {kind.__name__} does not read, and neither does this service: {', '.join(unread)}"
        )
    names = values.get("architectures") or [kind.__name__]
    if kind.__name__ not in names:
        told.append(
            f"names {', '.join(map(str, names))}, but its model_type {config.model_type!r} stands for {kind.__name__}, "
            "as which it is served"
        )
    return told


def unread_keys(values: Mapping[str, Any], config: Any, kind: type) -> list[str]:
    """The keys of ``values`` with something in them that neither the config's class nor ``kind`` mentions."""
    known = (
        {field.name for field in fields(config)} | set(config.attribute_map) | set(config.sub_configs) | _READ_BY_ALL
    )
    if hasattr(config, "rope_parameters"):
        known |= _CONVERTED
    unknown = sorted(
        key for key, value in values.items() if value is not None and key not in known and key not in _WITHOUT_NUMBERS
    )
    if not unknown:
        return []
    dropped = set(GenerationConfig().to_dict())  # of how to generate: transformers reads that of its own file alone
    words = _words_of(type(config), kind) - dropped
    return [key for key in unknown if key not in words]


def _words_of(*classes: type) -> set[str]:
    """Attributes and texts in the modules that classes and what they inherit from transformers are defined in."""
    modules = {
        base.__module__
        for each in classes
        for base in each.__mro__
        if base.__module__.startswith("transformers.models.")
    }
    found = [each for module in modules for each in _WORD.findall(inspect.getsource(sys.modules[module]))]
    return {attribute or text for attribute, text in found}
