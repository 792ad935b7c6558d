"""Reads the config.json of an EAGLE-3 head (Li et al. 2025), strictly: a key that could change a
number is followed or refused by name.

Two layouts are read. ``speculators`` writes the head's keys, and the decoder layer's keys under
``transformer_layer_config``. Older releases write both kinds side by side, and a few of the head's
keys under ``eagle_config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from slipstream.engine.config_numbers import is_positive, odd_position
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.generation_config_keys import NEUTRAL_IN_CONFIG, WITHOUT_EFFECT
from slipstream.engine.model_fingerprint import NOT_IN_LOGITS

MODEL_TYPE = "eagle3"
"""The ``speculators_model_type`` of such a head."""

_HEAD_KEYS: dict[str, Any] = {
    "draft_vocab_size": None,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": None,
    "norm_before_residual": None,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
}
"""Keys of the head, and what holds without them."""

_ABOUT_HEAD = frozenset(
    """
    speculators_model_type speculators_config speculators_version has_no_defaults_at_init embed_requires_grad
    transformer_layer_config target_model_type model_type eagle_config target_vocab_size target_layer_count
    num_lookahead_tokens pretraining_tp modeling_eagle auto_map
    """.split()
)
"""Keys that say where the head comes from and how it was trained."""

_LAYER_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": None, "head_dim": None, "intermediate_size": 11008, "vocab_size": 32000},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, "intermediate_size": 22016, "vocab_size": 151936},
}
"""Sizes that transformers' classes of these model types have where a file leaves them out."""

_SHARED_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "rope_parameters": None,
}

_ONLY: dict[str, tuple[Any, ...]] = {
    "num_hidden_layers": (1,),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "qkv_bias": (False,),
    "bias": (False,),
    "mlp_bias": (False,),
    "is_causal": (True,),
    "use_sliding_window": (False,),
    "layer_types": (["full_attention"],),
    "logit_scale": (1.0,),
    "parallel_drafting": (False,),
    "use_aux_hidden_state": (True,),
}
"""Keys of which only some values are computed here."""

_WITHOUT_NUMBERS = frozenset(
    """
    model_type tie_word_embeddings sliding_window max_window_layers chunk_size_feed_forward is_encoder_decoder
    pretraining_tp rope_theta rope_scaling tokenizer_class target_layer_count ignore_keys_at_rope_validation
    """.split()
)
"""Keys of a layer that change no number of it, or that another key is made of. A window counts only
with ``use_sliding_window`` or ``layer_types``."""

_ROPE_TYPES = ("default", "linear", "llama3")


class TargetShape(NamedTuple):
    """The sizes of a target that a head has to fit."""

    layer_count: int
    hidden_size: int
    vocabulary_size: int


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """The shape of an EAGLE-3 head, and its variants."""

    has_head_norms: bool
    """True if queries and keys are normed, as in Qwen3."""
    hidden_size: int
    target_hidden_size: int
    feed_forward: int
    head_count: int
    kv_head_count: int
    head_size: int
    vocabulary_size: int
    draft_vocabulary_size: int
    epsilon: float
    rotary: Mapping[str, Any]
    """``rope_parameters`` as transformers has them."""
    layer_ids: tuple[int, ...]
    """The target's layers whose inputs are the head's features. Layer 0's input is the
    embedding."""
    norm_before_residual: bool
    """True if the layer's residual is the normed feature, False if it is the feature itself."""
    norm_before_fc: bool
    """True if the joined features are normed together before they are fused."""
    fc_norm: bool
    """True if each feature is normed by itself before they are fused."""
    norm_output: bool
    """True if the next step gets the layer's output after the final norm, False if before it."""


def default_layer_ids(layer_count: int) -> tuple[int, int, int]:
    """Return the layers whose inputs a head takes if its config names none."""
    return 2, layer_count // 2, layer_count - 3


def is_eagle3(values: Mapping[str, Any]) -> bool:
    """Return True for the config.json of an EAGLE-3 head."""
    architectures = values.get("architectures")
    named = [str(each).lower() for each in architectures] if isinstance(architectures, list) else []
    return values.get("speculators_model_type") == MODEL_TYPE or any("eagle3" in name for name in named)


def read_eagle3_config(values: Mapping[str, Any], target: TargetShape) -> Eagle3Config:
    """Return what a config.json says. UnsupportedModelError names the key that cannot be followed
    or that does not fit the target."""
    head, layer = _parted(values)
    _refuse_unknown(head, layer)
    sizes = _sizes(layer)
    draft_size = head["draft_vocab_size"]
    config = Eagle3Config(
        has_head_norms=layer["model_type"] == "qwen3",
        hidden_size=sizes["hidden_size"],
        target_hidden_size=_whole("target_hidden_size", head["target_hidden_size"] or sizes["hidden_size"]),
        feed_forward=sizes["intermediate_size"],
        head_count=sizes["num_attention_heads"],
        kv_head_count=sizes["num_key_value_heads"],
        head_size=sizes["head_dim"],
        vocabulary_size=sizes["vocab_size"],
        draft_vocabulary_size=_whole("draft_vocab_size", sizes["vocab_size"] if draft_size is None else draft_size),
        epsilon=_epsilon(layer),
        rotary=_rotary(layer),
        layer_ids=_layer_ids(head["eagle_aux_hidden_state_layer_ids"], target.layer_count),
        **{key: _truth(key, head[key]) for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")},
    )
    _check(config, target)
    return config


def _parted(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of the head and those of its layer, each with what holds without them."""
    nested = values.get("eagle_config") or {}
    if not isinstance(nested, Mapping):
        raise _refusal("eagle_config", nested, "an object")
    said = {key: value for key, value in {**values, **nested}.items() if value is not None}
    if values.get("speculators_model_type") is None:
        head = {key: said.pop(key) for key in [*said] if key in _HEAD_KEYS or key in _ABOUT_HEAD - {"model_type"}}
        layer = said
        head.setdefault("norm_before_residual", False)  # as the older releases' own code computes
    else:
        head, nested = said, said.get("transformer_layer_config")
        if not isinstance(nested, Mapping):
            raise _refusal("transformer_layer_config", nested, "an object")
        layer = dict(nested)
    layer = {key: value for key, value in layer.items() if value is not None}
    kind = layer.setdefault("model_type", "llama")
    if kind not in _LAYER_DEFAULTS:
        raise _refusal("transformer_layer_config.model_type", kind, "one of " + ", ".join(_LAYER_DEFAULTS))
    return _HEAD_KEYS | head, _SHARED_DEFAULTS | _LAYER_DEFAULTS[kind] | layer


def _refuse_unknown(head: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    neutral = NOT_IN_LOGITS | WITHOUT_EFFECT | set(NEUTRAL_IN_CONFIG) | _WITHOUT_NUMBERS
    known = neutral | set(_ONLY) | set(_SHARED_DEFAULTS) | set(_LAYER_DEFAULTS["llama"])
    unknown = set(layer) - known | {
        key for key, value in head.items() if key not in {*_HEAD_KEYS, *_ABOUT_HEAD, *_ONLY} | neutral and value
    }
    if unknown:
        raise UnsupportedModelError(
            f"the EAGLE-3 head's config.json has keys that are not known here: {', '.join(sorted(unknown))}"
        )
    for key, values in _ONLY.items():
        for said in (head, layer):
            if said.get(key) is not None and said[key] not in values:
                raise _refusal(key, said[key], " or ".join(map(repr, values)))


def _sizes(layer: Mapping[str, Any]) -> dict[str, int]:
    sizes = {
        key: _whole(key, layer[key])
        for key in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "max_position_embeddings")
    }
    kv_heads = layer["num_key_value_heads"] or sizes["num_attention_heads"]
    sizes["num_key_value_heads"] = _whole("num_key_value_heads", kv_heads)
    head_dim = layer["head_dim"] or sizes["hidden_size"] // sizes["num_attention_heads"]
    sizes["head_dim"] = _whole("head_dim", head_dim)
    if sizes["num_attention_heads"] % sizes["num_key_value_heads"]:
        raise _refusal(
            "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads {sizes['num_attention_heads']}"
        )
    if sizes["head_dim"] % 2:
        raise _refusal("head_dim", sizes["head_dim"], "an even number")
    return sizes


def _rotary(layer: Mapping[str, Any]) -> dict[str, Any]:
    said = layer.get("rope_scaling") or layer["rope_parameters"] or {}
    if not isinstance(said, Mapping):
        raise _refusal("rope_parameters", said, "an object")
    rotary = {key: value for key, value in said.items() if value is not None}
    rotary.setdefault("rope_theta", layer.get("rope_theta", 10_000.0))
    rotary.setdefault("rope_type", rotary.get("type", "default"))
    if rotary["rope_type"] not in _ROPE_TYPES:
        raise _refusal("rope_type", rotary["rope_type"], "one of " + ", ".join(_ROPE_TYPES))
    if rotary["rope_type"] == "llama3":
        rotary.setdefault("original_max_position_embeddings", layer["max_position_embeddings"])
    if odd := odd_position(rotary):
        raise UnsupportedModelError(f"the EAGLE-3 head's rope_parameters have {odd}")
    return rotary


def _layer_ids(said: Any, layer_count: int) -> tuple[int, ...]:
    ids = default_layer_ids(layer_count) if said is None else said
    fits = isinstance(ids, (list, tuple)) and len(ids) > 0 and all(type(each) is int for each in ids)
    if not fits or not all(0 <= each < layer_count for each in ids) or len(set(ids)) < len(ids):
        right = f"different layers from 0 to {layer_count - 1} of the target"
        raise _refusal("eagle_aux_hidden_state_layer_ids", ids, right)
    return tuple(sorted(ids))  # the order of the layers, whichever order the file has


def _check(config: Eagle3Config, target: TargetShape) -> None:
    for key, said, wanted in (
        ("vocab_size", config.vocabulary_size, target.vocabulary_size),
        ("target_hidden_size", config.target_hidden_size, target.hidden_size),
    ):
        if said != wanted:
            raise _refusal(key, said, f"the target's {wanted}")
    if config.draft_vocabulary_size > config.vocabulary_size:
        raise _refusal("draft_vocab_size", config.draft_vocabulary_size, f"at most vocab_size {config.vocabulary_size}")
    if config.norm_before_fc and config.fc_norm:
        raise _refusal("fc_norm", True, "false with norm_before_fc")


def _epsilon(layer: Mapping[str, Any]) -> float:
    if not is_positive(layer["rms_norm_eps"]):
        raise _refusal("rms_norm_eps", layer["rms_norm_eps"], "a positive number")
    return float(layer["rms_norm_eps"])


def _whole(key: str, value: Any) -> int:
    if type(value) is not int or not 0 < value < 2**31:
        raise _refusal(key, value, "a positive whole number")
    return value


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refusal(key, value, "true or false")
    return value


def _refusal(key: str, value: Any, right: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"the EAGLE-3 head's {key} is {str(value)[:60]!r}, and must be {right}")
