"""Reads the config.json of Llama's family without transformers, strictly: as transformers would
read it, or not at all.

What transformers' class makes of a file (defaults, older names of keys) is repeated here for the
keys of four families. A file with any other key is not read, and transformers has to say what the
key means. Tests compare both, to the bit of a frequency and the hash of a fingerprint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from slipstream.engine.compiled.checkpoint_decoder import Shape, refuse_foreign
from slipstream.engine.compiled.frequencies import rotary_frequencies
from slipstream.engine.config_numbers import is_positive
from slipstream.engine.generation_config_keys import NEUTRAL_IN_CONFIG, WITHOUT_EFFECT
from slipstream.engine.model_fingerprint import NOT_IN_LOGITS


class UnknownConfigError(Exception):
    """A config.json that is not read here, and why."""


@dataclass(frozen=True, slots=True)
class Family:
    """A model type: transformers' class, its fields and their defaults."""

    architecture: str
    fields: Mapping[str, Any]
    biases: Mapping[str, str] = field(default_factory=dict)
    """The key that says whether a matrix has a bias; empty if it always has one."""
    has_head_norms: bool = False


_SHARED: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
}
_QWEN: dict[str, Any] = _SHARED | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_ATTENTION = "q_proj", "k_proj", "v_proj", "o_proj"
_BY_KEY = dict.fromkeys(_ATTENTION, "attention_bias")

FAMILIES: dict[str, Family] = {
    "llama": Family(
        "LlamaForCausalLM",
        _SHARED
        | {
            "vocab_size": 32000,
            "intermediate_size": 11008,
            "num_key_value_heads": None,
            "max_position_embeddings": 2048,
            "pretraining_tp": 1,
            "attention_bias": False,
            "mlp_bias": False,
            "head_dim": None,
        },
        _BY_KEY | dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp_bias"),
    ),
    "mistral": Family(
        "MistralForCausalLM",
        _SHARED
        | {
            "vocab_size": 32000,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "head_dim": None,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
    ),
    "qwen2": Family("Qwen2ForCausalLM", _QWEN, dict.fromkeys(("q_proj", "k_proj", "v_proj"), "")),
    "qwen3": Family(
        "Qwen3ForCausalLM", _QWEN | {"head_dim": 128, "attention_bias": False}, _BY_KEY, has_head_norms=True
    ),
}

_BASE = {"chunk_size_feed_forward": 0, "is_encoder_decoder": False}
"""Keys that transformers' base class adds to every config and that count in a fingerprint."""

_DROPPED = frozenset(
    """
    assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams
    num_return_sequences output_scores remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens
    target_lookbehind temperature top_k top_p typical_p _commit_hash rope_theta rope_scaling
    """.split()
)
"""Keys that transformers takes away: of how to generate, and those that it makes rope_parameters
of."""

_CONVERTED = frozenset({"rope_theta", "rope_scaling"})
"""The latter of these keys, which are followed."""

_WITHOUT_NUMBERS = frozenset(
    "tokenizer_class is_llama_config transformers.js_config unsloth_fixed unsloth_version".split()
)
"""Keys that transformers keeps and that no class of these families reads."""

_NEUTRAL: dict[str, Any] = {"rope_interleaved": False, "use_mrope": False}
"""Keys that no class of these families reads, with the value that says what all of them compute."""

_WHOLE = """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    max_position_embeddings
""".split()
_FOLLOWING = ("num_key_value_heads", "head_dim")
"""Sizes that follow from others where a file has them as null."""
_TRUTHS = "tie_word_embeddings attention_bias mlp_bias use_sliding_window".split()


class CheckpointConfig:
    """A config.json of one of these families, as transformers would read it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """UnknownConfigError if it is not known here what transformers would make of it."""
        family = FAMILIES.get(str(values.get("model_type")))
        if family is None:
            raise UnknownConfigError(f"its model_type is {values.get('model_type')!r}")
        self.family = family
        architectures = values.get("architectures") or [family.architecture]
        if architectures != [family.architecture]:
            raise UnknownConfigError(f"its architectures are {architectures}")
        others = {
            key: value
            for key, value in values.items()
            if key not in family.fields and key not in NOT_IN_LOGITS and key not in _DROPPED and value is not None
        }
        neutral = {key for key, value in _NEUTRAL.items() if others.get(key) is value}
        unknown = sorted(set(others) - _WITHOUT_NUMBERS - neutral - set(_BASE) - {"model_type"})
        if unknown:
            raise UnknownConfigError(f"its keys {', '.join(unknown)} are not known")
        self.unread = sorted(
            key
            for key in _DROPPED - _CONVERTED - WITHOUT_EFFECT
            if values.get(key) is not None and values[key] != NEUTRAL_IN_CONFIG.get(key)
        )
        """Keys of how to generate that ask for something, which only generation_config.json can."""
        self.eos_token_id = values.get("eos_token_id", 2 if family.architecture in _ENDED_BY_2 else None)
        self.read: dict[str, Any] = {**_BASE, **family.fields, **others}
        self.read |= {key: value for key, value in values.items() if key in family.fields}
        with _misfits_are_unknown():
            self._check_sizes(optional=_FOLLOWING)
            self._complete(values)
            self._check_sizes()
            self._check()

    def _complete(self, values: Mapping[str, Any]) -> None:
        """Fill in what follows from other keys."""
        read = self.read
        read["model_type"] = values["model_type"]
        if read["num_key_value_heads"] is None:
            read["num_key_value_heads"] = read["num_attention_heads"]
        if "head_dim" in read and read["head_dim"] is None:
            read["head_dim"] = read["hidden_size"] // read["num_attention_heads"]
        if "layer_types" in read:
            if not read["use_sliding_window"]:
                read["sliding_window"] = None
            if read["layer_types"] is None:
                first = read["max_window_layers"] if read["sliding_window"] is not None else math.inf
                read["layer_types"] = [
                    "sliding_attention" if index >= first else "full_attention"
                    for index in range(read["num_hidden_layers"])
                ]
        said = values.get("rope_scaling") or read["rope_parameters"] or {}
        if not isinstance(said, Mapping):
            raise UnknownConfigError(f"its rotary positions are {said!r}")
        rotary = dict(said)
        rotary.setdefault("rope_theta", values.get("rope_theta", 10_000.0))
        rotary.setdefault("rope_type", rotary.get("type", "default"))
        if rotary["rope_type"] == "llama3":
            rotary.setdefault("original_max_position_embeddings", read["max_position_embeddings"])
        read["rope_parameters"] = rotary

    def _check_sizes(self, optional: tuple[str, ...] = ()) -> None:
        read = self.read
        for key in (key for key in _WHOLE if key in read and not (key in optional and read[key] is None)):
            if not isinstance(read[key], int) or isinstance(read[key], bool) or read[key] < 1:
                raise UnknownConfigError(f"its {key} is {read[key]!r}")

    def _check(self) -> None:
        read = self.read
        for key in (key for key in _TRUTHS if key in read):
            if not isinstance(read[key], bool):
                raise UnknownConfigError(f"its {key} is {read[key]!r}")
        if not isinstance(read["rms_norm_eps"], float) or not is_positive(read["rms_norm_eps"]):
            raise UnknownConfigError(f"its rms_norm_eps is {read['rms_norm_eps']!r}")
        if read["model_type"] == "llama" and read["hidden_size"] % read["num_attention_heads"]:
            raise UnknownConfigError("its hidden_size is no multiple of its heads")
        window = read.get("sliding_window")
        if window is not None and (not isinstance(window, int) or window < 2):
            raise UnknownConfigError(f"its sliding_window is {window!r}")
        types: list[str] = read.get("layer_types", [])
        if set(types) - {"sliding_attention", "full_attention"} or (types and len(types) != read["num_hidden_layers"]):
            raise UnknownConfigError(f"its layer_types are {types}")

    def __getattr__(self, key: str) -> Any:
        """A key, as of transformers' classes."""
        try:
            return self.__dict__["read"][key]
        except KeyError:
            raise AttributeError(key) from None

    @property
    def ties_head(self) -> bool:
        """True if the embedding is the output matrix too."""
        return bool(self.read["tie_word_embeddings"])

    def shape(self, page_size: int) -> Shape:
        """Return the model's shape. NotCompiledError if compiled forwards cannot compute it,
        UnknownConfigError for rotary positions that are not known here."""
        with _misfits_are_unknown():
            return self._shape(page_size)

    def _shape(self, page_size: int) -> Shape:
        read = self.read
        refuse_foreign(self, self.family.architecture, page_size)
        head_size = read.get("head_dim") or read["hidden_size"] // read["num_attention_heads"]
        frequencies = rotary_frequencies(read["rope_parameters"], head_size)
        if frequencies is None:
            raise UnknownConfigError(f"its rope_parameters are {read['rope_parameters']}")
        return Shape(
            architecture=self.family.architecture,
            vocabulary_size=read["vocab_size"],
            context_length=read["max_position_embeddings"],
            layer_count=read["num_hidden_layers"],
            hidden_size=read["hidden_size"],
            feed_forward=read["intermediate_size"],
            head_size=head_size,
            head_count=read["num_attention_heads"],
            kv_head_count=read["num_key_value_heads"],
            epsilon=read["rms_norm_eps"],
            attention_scale=head_size**-0.5,
            rotation_scale=1.0,
            frequencies=frequencies,
            windows=self._windows(),
        )

    def _windows(self) -> tuple[int, ...]:
        read = self.read
        layer_count: int = read["num_hidden_layers"]
        window = read.get("sliding_window")
        if window is None or window >= read["max_position_embeddings"]:
            return (0,) * layer_count
        types: list[str] = read.get("layer_types", ["sliding_attention"] * layer_count)
        return tuple(window if each == "sliding_attention" else 0 for each in types)

    def tensor_shapes(self, shape: Shape) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors of the model by name, the output matrix included."""
        read = self.read
        attended, kept = shape.head_count * shape.head_size, shape.kv_head_count * shape.head_size
        matrices = {
            "self_attn.q_proj": (attended, shape.hidden_size),
            "self_attn.k_proj": (kept, shape.hidden_size),
            "self_attn.v_proj": (kept, shape.hidden_size),
            "self_attn.o_proj": (shape.hidden_size, attended),
            "mlp.gate_proj": (shape.feed_forward, shape.hidden_size),
            "mlp.up_proj": (shape.feed_forward, shape.hidden_size),
            "mlp.down_proj": (shape.hidden_size, shape.feed_forward),
        }
        layer: dict[str, tuple[int, ...]] = {}
        for name, size in matrices.items():
            layer[f"{name}.weight"] = size
            key = self.family.biases.get(name.split(".")[1])
            if key is not None and (not key or read[key]):
                layer[f"{name}.bias"] = size[:1]
        norms = ["input_layernorm", "post_attention_layernorm"]
        layer |= {f"{name}.weight": (shape.hidden_size,) for name in norms}
        if self.family.has_head_norms:
            layer |= {f"self_attn.{name}.weight": (shape.head_size,) for name in ("q_norm", "k_norm")}
        embedding = shape.vocabulary_size, shape.hidden_size
        ends = {"model.embed_tokens.weight": embedding, "model.norm.weight": (shape.hidden_size,)}
        layers = {
            f"model.layers.{index}.{name}": size for index in range(shape.layer_count) for name, size in layer.items()
        }
        return ends | layers | {"lm_head.weight": embedding}


@contextmanager
def _misfits_are_unknown() -> Iterator[None]:
    """Raise UnknownConfigError where a value has a type or a size that is not reckoned with."""
    try:
        yield
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UnknownConfigError(f"its config.json does not fit its model type: {error}") from error


_ENDED_BY_2 = "LlamaForCausalLM", "MistralForCausalLM"
"""Classes whose default end token is 2."""
