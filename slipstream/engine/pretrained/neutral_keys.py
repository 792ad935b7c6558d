"""Tells values of unread config keys that say what transformers' class computes anyway.

Well-known models have such keys: a switch of a part that the class does not have, or a second name
of a key that it reads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from slipstream.engine.generation_config_keys import NEUTRAL_IN_CONFIG

_VALUES: dict[str, Any] = NEUTRAL_IN_CONFIG | {
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "moe_layer_freq": 1,
    "rotary_scaling_factor": 1,
    "rotary": True,
    "scale_attn_weights": True,
    "apply_residual_connection_post_layernorm": False,
}
"""With which a key changes nothing in any class."""

_VALUES_OF_TYPE: dict[tuple[str, str], Any] = {
    ("deepseek_v2", "scoring_func"): "softmax",
    ("deepseek_v3", "scoring_func"): "sigmoid",
    ("deepseek_v3", "topk_method"): "noaux_tc",
    ("starcoder2", "mlp_type"): "default",
    ("starcoder2", "norm_type"): "layer_norm",
}
"""Values that the class of a model type computes with, by model type and key."""

_SYNONYMS: tuple[frozenset[str], ...] = (
    frozenset({"hidden_act", "hidden_activation", "activation", "activation_function"}),
    frozenset({"sliding_window", "sliding_window_size"}),
    frozenset({"num_experts_per_tok", "num_experts_per_token", "experts_per_token"}),
    frozenset({"norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "rms_norm_eps"}),
    frozenset({"partial_rotary_factor", "rope_pct", "rotary_pct"}),
    frozenset({"original_max_position_embeddings", "initial_context_length"}),
    frozenset({"max_position_embeddings", "model_max_length"}),
    frozenset({"tie_word_embeddings", "weight_tying"}),
)
_GATED_ACTIVATIONS = {"swiglu": "silu"}
"""Activations of a feed-forward with a gate, and what such a class names them."""

_ALTERNATING = ("::2", "view_as_complex")
"""In the source of a class that rotates neighbouring numbers instead of the two halves."""


@dataclass(frozen=True, slots=True)
class ReadKeys:
    """The keys that a class reads, and what it computes."""

    config: Any
    names: Collection[str]
    """Keys that its config declares."""
    source: str
    """Source of the modules that the class and its config are defined in."""
    parameters: Collection[str]

    def is_neutral(self, key: str, value: Any) -> bool:
        """Return True if a key that the class does not read says what the class computes anyway."""
        if "dropout" in key or key.endswith("pdrop"):
            return True
        if key == "max_window_layers":
            return self._has_no_window()
        if key == "rope_interleaved" and value is False:
            return not any(sign in self.source for sign in _ALTERNATING)
        if key.endswith("bias") and value is False:
            return not any(name.endswith("bias") and ("norm" in key or "norm" not in name) for name in self.parameters)
        if key == "attention_bias" and value is True:
            return self._has_all_attention_biases()
        if key.startswith("use_") and value is False:
            return not any(word in self.source.lower() for word in key.removeprefix("use_").split("_"))
        fixed = _VALUES_OF_TYPE.get((self.config.model_type, key), _VALUES.get(key))
        return (fixed is not None and value == fixed) or self._repeats(key, value)

    def _has_all_attention_biases(self) -> bool:
        names = set(self.parameters)
        weights = [name for name in names if "attn" in name and "norm" not in name and name.endswith(".weight")]
        return bool(weights) and all(name.removesuffix("weight") + "bias" in names for name in weights)

    def _has_no_window(self) -> bool:
        if "use_sliding_window" in self.names and not self.config.use_sliding_window:
            return True
        return getattr(self.config, "sliding_window", None) is None

    def _repeats(self, key: str, value: Any) -> bool:
        """Return True if a key is another name of one that the class reads, with the same value."""
        if isinstance(value, str) and value in _GATED_ACTIVATIONS and any("gate" in name for name in self.parameters):
            value = _GATED_ACTIVATIONS[value]
        others = [self._read(name) for group in _SYNONYMS if key in group for name in group - {key}]
        found = [each for each in others if each is not None]
        return bool(found) and all(each == value for each in found)

    def _read(self, name: str) -> Any:
        """The value of a key that the class reads, None if it reads none of that name."""
        if name in self.names:
            return getattr(self.config, name, None)
        positions = getattr(self.config, "rope_parameters", None)
        return positions.get(name) if isinstance(positions, dict) else None
