"""Reads the config.json of Medusa heads (Cai et al. 2024), strictly: a key that could change a
number is followed or refused by name.

Three layouts are read: the original one (``medusa_num_heads``), vLLM's (``num_heads``), and that of
``speculators``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from slipstream.engine.checkpoint import some
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.generation_config_keys import NEUTRAL_IN_CONFIG, WITHOUT_EFFECT
from slipstream.engine.hinting.hints import MOST_TOKENS
from slipstream.engine.model_fingerprint import NOT_IN_LOGITS

MODEL_TYPE = "medusa"

_COUNTED = {
    "medusa_num_heads": "head_count",
    "num_heads": "head_count",
    "medusa_num_layers": "layer_count",
    "num_hidden_layers": "layer_count",
    "medusa_hidden_size": "hidden_size",
    "hidden_size": "hidden_size",
    "medusa_vocab_size": "vocabulary_size",
    "vocab_size": "vocabulary_size",
    "truncated_vocab_size": "truncated_size",
}
"""Keys of whole numbers in all layouts, and the field that each is here. The first one of a field
counts."""

_ONLY: dict[str, tuple[Any, ...]] = {"logit_scale": (1.0,), "hidden_act": ("silu",)}
"""Keys of which only some values are computed here."""

_ABOUT = frozenset(
    """
    speculators_model_type speculators_config speculators_version has_no_defaults_at_init head_weight_decay
    base_model_name_or_path max_paths topk medusa_choices version medusa_fc_bias original_lm_head
    """.split()
)
"""Keys that say where the heads come from, how they were trained, and what a verifier of its own
would do with them."""


class MedusaConfig(NamedTuple):
    """The sizes of Medusa heads."""

    head_count: int
    layer_count: int
    """Residual blocks before a head's output matrix."""
    hidden_size: int
    vocabulary_size: int
    truncated_size: int
    """Tokens that the heads know; the vocabulary's size where they know all."""
    shares_output: bool
    """True if all heads use the target's output matrix."""
    is_original: bool
    """True for the original layout, whose tensors have other names."""


def is_medusa(values: Mapping[str, Any]) -> bool:
    """Return True for the config.json of Medusa heads."""
    if values.get("speculators_model_type") is not None:
        return bool(values["speculators_model_type"] == MODEL_TYPE)
    return "medusa_num_heads" in values or values.get("model_type") == MODEL_TYPE


def read_medusa_config(values: Mapping[str, Any], hidden_size: int, vocabulary_size: int) -> MedusaConfig:
    """Return what a config.json says, for a target of these sizes. UnsupportedModelError names the
    key that cannot be followed or that does not fit the target."""
    said = {key: value for key, value in values.items() if value is not None}
    _refuse_unknown(said)
    counts: dict[str, int] = {}
    for key, name in _COUNTED.items():
        if key in said and name not in counts:
            counts[name] = _whole(key, said[key], least=0 if key == "truncated_vocab_size" else 1)
            _check_fit(key, counts[name], {"hidden_size": hidden_size, "vocabulary_size": vocabulary_size}.get(name))
    is_original = "medusa_num_heads" in said
    config = MedusaConfig(
        head_count=counts.get("head_count", 0),
        layer_count=counts.get("layer_count", 1),
        hidden_size=hidden_size,
        vocabulary_size=vocabulary_size,
        truncated_size=counts.get("truncated_size") or vocabulary_size,
        shares_output=bool(said.get("original_lm_head", "speculators_model_type" in said)) and not is_original,
        is_original=is_original,
    )
    if not 1 <= config.head_count <= MOST_TOKENS:
        raise _refusal("num_heads", config.head_count or None, f"from 1 to {MOST_TOKENS}")
    if config.truncated_size > vocabulary_size:
        raise _refusal("truncated_vocab_size", config.truncated_size, f"at most the target's {vocabulary_size}")
    return config


def _refuse_unknown(said: Mapping[str, Any]) -> None:
    neutral = NOT_IN_LOGITS | WITHOUT_EFFECT | set(NEUTRAL_IN_CONFIG) | {"model_type"}
    if unknown := set(said) - neutral - _ABOUT - set(_COUNTED) - set(_ONLY):
        raise UnsupportedModelError(f"the Medusa heads' config.json has keys that are not known here: {some(unknown)}")
    for key, values in _ONLY.items():
        if key in said and said[key] not in values:
            raise _refusal(key, said[key], " or ".join(map(repr, values)))


def _check_fit(key: str, value: int, wanted: int | None) -> None:
    if wanted is not None and value != wanted:
        raise _refusal(key, value, f"the target's {wanted}")


def _whole(key: str, value: object, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _refusal(key, value, f"a whole number from {least}")
    return value


def _refusal(key: str, value: object, right: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"the Medusa heads' {key} is {value!r}, and must be {right}")
