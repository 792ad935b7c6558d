"""Count a model's parameters by its configuration. Pure but for a table in the package.

A family is one of transformers' model types. What it has beside the matrices that all decoders have
is one entry of `FAMILIES`. Tests compare the counts with transformers' own models.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.planning.errors import PlanError
from slipstream.planning.shape import KvLayers, Weights

Config = Mapping[str, Any]
"""Entries of a config.json."""


@dataclass(frozen=True, slots=True)
class Family:
    """Differences of a model type from a plain decoder. A text names the entry that decides."""

    layer_vectors: int = 2
    """Norms of a layer that have as many entries as the hidden state; their biases count too."""
    final_vectors: int = 1
    qkv_bias: bool | str = "attention_bias"
    output_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    is_gated: bool = True
    query_key_norm: str = ""
    """"head": one norm for all heads; "whole": a norm over all heads; empty: none."""
    is_tied: bool = False
    """True if a configuration that does not say so shares embedding and head."""
    head_size: int | None = None
    """Size of a head if the configuration does not say; None for hidden size over heads."""
    has_experts: bool = False
    expert_size: str = "moe_intermediate_size"
    has_sinks: bool = False
    is_divided: bool = True
    """True if Slipstream's torch engine divides it among ranks."""
    window: Callable[[Config, int], bool] = lambda config, layer: False
    """Return whether a layer has the sliding window, if the configuration lists no layer types."""


def _every(config: Config, layer: int) -> bool:
    return True


def _all_but(period: int) -> Callable[[Config, int], bool]:
    """Return a rule: each layer whose number, from 1, is no multiple of the period."""
    return lambda config, layer: bool((layer + 1) % (config.get("sliding_window_pattern") or period))


def _qwen(config: Config, layer: int) -> bool:
    return bool(config.get("use_sliding_window")) and layer >= config.get("max_window_layers", 28)


_QWEN2 = Family(qkv_bias=True, output_bias=False, window=_qwen)
_GEMMA3 = Family(4, query_key_norm="head", is_tied=True, head_size=256, window=_all_but(6))

FAMILIES = {
    "llama": Family(),
    "mistral": Family(window=_every),
    "ministral3": Family(window=_every),
    "smollm3": Family(is_tied=True),
    "seed_oss": Family(qkv_bias="attention_bias", output_bias="attention_out_bias", head_size=128),
    "ernie4_5": Family(qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", is_tied=True, head_size=128),
    "qwen2": _QWEN2,
    "qwen3": Family(query_key_norm="head", head_size=128, window=_qwen),
    "gemma": Family(is_tied=True, head_size=256),
    "gemma2": Family(4, is_tied=True, head_size=256, window=_all_but(2)),
    "gemma3_text": _GEMMA3,
    "phi3": Family(qkv_bias=False, output_bias=False, window=_every, is_divided=False),
    "granite": Family(),
    "olmo2": Family(query_key_norm="whole", is_divided=False),
    "olmo3": Family(query_key_norm="whole", window=_all_but(4), is_divided=False),
    "exaone4": Family(query_key_norm="head", window=_all_but(4)),
    "glm4": Family(4, output_bias=False, head_size=128, is_divided=False),
    "cohere2": Family(1, is_tied=True, window=_all_but(4)),
    "starcoder2": Family(
        4, 2, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", is_gated=False, is_tied=True
    ),
    "gpt_neox": Family(4, 2, mlp_bias=True, is_gated=False),
    "mixtral": Family(has_experts=True, expert_size="intermediate_size", window=_every, is_divided=False),
    "granitemoe": Family(has_experts=True, expert_size="intermediate_size", is_divided=False),
    "olmoe": Family(query_key_norm="whole", has_experts=True, expert_size="intermediate_size", is_divided=False),
    "qwen2_moe": Family(qkv_bias="qkv_bias", output_bias=False, has_experts=True, window=_qwen, is_divided=False),
    "qwen3_moe": Family(query_key_norm="head", has_experts=True, is_divided=False),
    "gpt_oss": Family(
        mlp_bias=True,
        head_size=64,
        has_experts=True,
        expert_size="intermediate_size",
        has_sinks=True,
        is_divided=False,
        window=_all_but(2),
    ),
    "deepseek_v3": Family(has_experts=True, is_divided=False),
}
"""Model types that can be planned with."""

_MOST = 10**9
"""More than any number of a model's configuration."""

_MOST_LAYERS = 10_000

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Entries that may have the number of a layer's routed experts."""

_BIASED_BY_DEFAULT = {"gpt_oss", "gpt_neox", "glm4", "seed_oss", "starcoder2", "qwen2_moe"}
"""Model types whose configuration means a bias when it does not say."""


class Decoder:
    """A configuration, read as its family."""

    def __init__(self, config: Config, name: str) -> None:
        """PlanError if the model type is not known or a number is missing. ``name`` begins the
        message."""
        self._name = name
        text = config.get("text_config")
        if not isinstance(text, Mapping) and not config.get("model_type"):
            raise PlanError(f"{name}: its configuration names no model_type; give a model's config.json")
        self.model_type = str(config.get("model_type"))
        if isinstance(text, Mapping):  # a multimodal model's decoder
            self.model_type = str(text.get("model_type") or f"{self.model_type}_text")
            is_tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
            config = {**_left_out(self.model_type), **text, "tie_word_embeddings": is_tied}
        if self.model_type not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise PlanError(f"{name}: model type {self.model_type!r} cannot be planned with; known are {known}")
        self.config, self.family = config, FAMILIES[self.model_type]
        self.hidden_size = self.number("hidden_size")
        self.layer_count = self.number("num_hidden_layers", most=_MOST_LAYERS)
        self.head_count = self.number("num_attention_heads")
        self.kv_head_count = self._or("num_key_value_heads", self.head_count)
        self.head_size = self._or("head_dim", self.family.head_size or max(1, self.hidden_size // self.head_count))
        self.vocabulary_size = self.number("vocab_size")

    def number(self, key: str, default: int | None = None, most: int = _MOST) -> int:
        """Return a whole number of the configuration. PlanError if there is none above 0."""
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            said = f"{self._name}: {key} is {_short(value)} in its configuration"
            raise PlanError(f"{said}, not a whole number from 1 to {most}")
        return value

    def _or(self, key: str, default: int) -> int:
        """Return a number of the configuration, or the default where it is left out or null."""
        return default if self.config.get(key) is None else self.number(key)

    def says(self, key: bool | str) -> bool:
        """Return whether something is there, by itself or by an entry of the configuration."""
        if isinstance(key, bool):
            return key
        value = self.config.get(key)
        return self.model_type in _BIASED_BY_DEFAULT if value is None and key != "mlp_bias" else bool(value)

    @property
    def is_latent(self) -> bool:
        """Return whether keys and values come from one latent vector (MLA)."""
        return bool(self.config.get("kv_lora_rank"))

    @property
    def expert_count(self) -> int:
        """Routed experts of a layer; 0 if there are none."""
        if not self.family.has_experts:
            return 0
        return self.number(next((key for key in _EXPERT_COUNTS if key in self.config), _EXPERT_COUNTS[0]))

    @property
    def query_size(self) -> int:
        """Entries of all query heads of a layer."""
        return self.head_count * (self._latent_sizes()[0] if self.is_latent else self.head_size)

    @property
    def latent_values(self) -> int:
        """Entries of a token's latent vectors in all layers (MLA); 0 if there are none."""
        each = self.number("kv_lora_rank") + self.number("qk_rope_head_dim") if self.is_latent else 0
        return self.layer_count * each

    def kv_layers(self) -> list[KvLayers]:
        """Return the attention layers by their window. MLA's keys and values count expanded, as the
        engine keeps them."""
        if self.is_latent:
            key, value = self._latent_sizes()
            return [KvLayers(self.layer_count, self.head_count * (key + value))]
        values = 2 * self.kv_head_count * self.head_size
        window = self.config.get("sliding_window")
        types = [*(self.config.get("layer_types") or ())]
        slid = 0
        if isinstance(window, int) and window > 0:
            slid = sum(
                types[layer] == "sliding_attention" if layer < len(types) else self.family.window(self.config, layer)
                for layer in range(self.layer_count)
            )
        kinds = [KvLayers(slid, values, window), KvLayers(self.layer_count - slid, values)]
        return [kind for kind in kinds if kind.layer_count]

    def weights(self) -> Weights:
        """Return the parameters by their place."""
        hidden, embedding = self.hidden_size, self.vocabulary_size * self.hidden_size
        said = self.config.get("tie_word_embeddings")
        is_tied = self.family.is_tied if said is None else bool(said)
        attention, attention_small, value = self._latent_attention() if self.is_latent else self._attention()
        sparse = self._sparse_layer_count()
        plain = self.layer_count - sparse
        dense_mlp, dense_mlp_small = (0, 0) if not plain else self._mlp(self.number("intermediate_size"))
        experts, shared, sparse_small = self._experts() if sparse else (0, 0, 0)
        down = (dense_mlp * plain + (experts + shared) * sparse) // (3 if self.family.is_gated else 2)
        return Weights(
            embedding=embedding,
            head=0 if is_tied else embedding,
            dense=self.layer_count * attention + plain * dense_mlp + sparse * shared,
            experts=sparse * experts,
            small=self.family.final_vectors * hidden
            + self.layer_count * (self.family.layer_vectors * hidden + attention_small)
            + plain * dense_mlp_small
            + sparse * sparse_small,
            six_bit=self.layer_count * value + down,
        )

    def _attention(self) -> tuple[int, int, int]:
        """Return a layer's matrices, its small parameters and its value projection."""
        queries, keys = self.head_count * self.head_size, self.kv_head_count * self.head_size
        small = self.says(self.family.qkv_bias) * (queries + 2 * keys) + self.head_count * self.family.has_sinks
        small += self.says(self.family.output_bias) * self.hidden_size
        small += {"": 0, "head": 2 * self.head_size, "whole": queries + keys}[self.family.query_key_norm]
        return 2 * self.hidden_size * (queries + keys), small, self.hidden_size * keys

    def _latent_sizes(self) -> tuple[int, int]:
        """Return the sizes of a key and of a value after their expansion."""
        return self.number("qk_nope_head_dim") + self.number("qk_rope_head_dim"), self.number("v_head_dim")

    def _latent_attention(self) -> tuple[int, int, int]:
        hidden, rank, rope = self.hidden_size, self.number("kv_lora_rank"), self.number("qk_rope_head_dim")
        key, value = self._latent_sizes()
        expanded = rank * self.head_count * (key - rope + value)
        matrices = hidden * (rank + rope) + expanded + self.head_count * value * hidden
        small = rank
        if self.config.get("q_lora_rank"):
            query_rank = self.number("q_lora_rank")
            matrices += query_rank * (hidden + self.head_count * key)
            small += query_rank
        else:
            matrices += hidden * self.head_count * key
        return matrices, small, 0

    def _mlp(self, size: int) -> tuple[int, int]:
        """Return the matrices and the biases of one block."""
        inner = 2 if self.family.is_gated else 1
        return (inner + 1) * self.hidden_size * size, self.says(self.family.mlp_bias) * (
            inner * size + self.hidden_size
        )

    def _sparse_layer_count(self) -> int:
        """Return the number of layers that have experts."""
        if not self.family.has_experts:
            return 0
        step = self.config.get("decoder_sparse_step") or 1
        dense = set(self.config.get("mlp_only_layers") or ())
        first = self.config.get("first_k_dense_replace") or 0
        return sum(
            layer >= first and layer not in dense and (layer + 1) % step == 0 for layer in range(self.layer_count)
        )

    def _experts(self) -> tuple[int, int, int]:
        """Return a layer's routed experts, its shared ones, and its small parameters."""
        count, hidden = self.expert_count, self.hidden_size
        one, bias = self._mlp(self.number(self.family.expert_size))
        shared = small = 0
        if size := self.config.get("shared_expert_intermediate_size"):
            shared, small = self._mlp(size)[0], hidden  # and the gate of the shared expert
        if number := self.config.get("n_shared_experts"):
            shared = self._mlp(number * self.number(self.family.expert_size))[0]
        router = count * hidden + (count if bias else 0)
        return count * one, shared, small + count * bias + router


def _left_out(model_type: str) -> Config:
    """Return transformers' values of the entries that a configuration may leave out where it is a
    part of another: only what differs from them is saved there."""
    content = tomllib.loads(Path(__file__).with_name("defaults.toml").read_text(encoding="utf-8"))
    found: Config = content.get(model_type, {})
    return found


def _short(value: Any) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # a whole number of more digits than Python prints
        return "too large"
