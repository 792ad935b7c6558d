"""Packs the weights of a checkpoint of Llama's family for compiled forwards."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.engine.compiled.decoder import (
    Decoder,
    NotCompiledError,
    alternating,
    refuse_odd_pages,
    refuse_odd_sizes,
)
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.packing import packed_numbers
from slipstream.engine.compiled.products import TILE_COLUMNS
from slipstream.engine.compiled.records import LAYER
from slipstream.engine.generation_config import GenerationConfig
from slipstream.sampling.blocks import floats_of
from slipstream.sampling.kernel import Floats32

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Classes of one shape: RMS norms, rotary positions and a feed-forward gated by silu. Some have
biases, or norms of queries and keys."""

_HEAD_NORMS = {"Qwen3ForCausalLM"}
"""Architectures that normalise each head of queries and keys. Zeros would change the mean."""

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers of a checkpoint's model, without its weights."""

    architecture: str
    vocabulary_size: int
    context_length: int
    layer_count: int
    hidden_size: int
    feed_forward: int
    head_size: int
    head_count: int
    kv_head_count: int
    epsilon: float
    """Epsilon of RMS norms."""
    attention_scale: float
    rotation_scale: float
    frequencies: Floats32
    """Frequencies of rotary positions: float32 ``[head size / 2]``."""
    windows: tuple[int, ...]
    """Keys that a query of each layer sees at most, 0 for all."""


def refuse_foreign(config: Any, architecture: str, page_size: int = LANES) -> None:
    """Raise NotCompiledError for a model of another shape, by its config alone, or for pages that
    are not whole blocks."""
    refuse_odd_pages(page_size)
    if architecture not in ARCHITECTURES:
        raise NotCompiledError(f"{architecture} is none of {', '.join(ARCHITECTURES)}")
    if getattr(config, "hidden_act", "silu") != "silu":
        raise NotCompiledError(f"its activation is {config.hidden_act}")
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if architecture not in _HEAD_NORMS and head_size % 2 == 0 and 2 * wide_head_size(head_size) <= 3 * head_size:
        head_size = wide_head_size(head_size)
    refuse_odd_sizes(head_size, config.hidden_size, config.intermediate_size)
    if config.num_attention_heads % config.num_key_value_heads:
        raise NotCompiledError("its key heads do not share its query heads evenly")


def wide_head_size(head_size: int) -> int:
    """Return the size that heads are filled up to with zeros: whole tiles.

    Zeros change no score and no sum. A head of 80 then takes a fifth more memory; one that would
    take more than half as much again is left to another backend.
    """
    return -(-head_size // TILE_COLUMNS) * TILE_COLUMNS


def widened(heads: np.ndarray, head_size: int, *, in_halves: bool = False) -> np.ndarray:
    """Fill heads up with zeros, each of ``head_size`` along the first axis.

    ``in_halves`` fills up both halves of a head, which rotary positions pair; otherwise its end.
    """
    wide = wide_head_size(head_size)
    if wide == head_size:
        return heads
    parts = 2 if in_halves else 1
    filled = np.zeros((len(heads) // head_size * parts, wide // parts, *heads.shape[1:]), heads.dtype)
    filled[:, : head_size // parts] = heads.reshape(-1, head_size // parts, *heads.shape[1:])
    return filled.reshape(-1, *heads.shape[1:])


class CheckpointDecoder(Decoder):
    """A checkpoint's model, as compiled forwards read it."""

    def __init__(
        self,
        shape: Shape,
        tensors: MutableMapping[str, np.ndarray],
        generation: GenerationConfig,
        weights_fingerprint: str,
    ) -> None:
        """``tensors`` are float32 or the bits of bfloat16 as uint16, by their names in the
        checkpoint. Each is taken out of the caller's mapping and let go of once it is packed: two
        copies are there for one layer only."""
        super().__init__()
        self._tensors = tensors
        self.architecture = shape.architecture
        self.vocabulary_size, self.context_length = shape.vocabulary_size, shape.context_length
        self.generation = generation
        self.end_token_ids = generation.end_token_ids
        self.sampling_defaults, self.length_defaults = generation.sampling, generation.lengths
        self.weights_fingerprint = weights_fingerprint
        self._own_head_size = shape.head_size
        self.head_size = wide_head_size(shape.head_size)
        self.head_count, self.kv_head_count = shape.head_count, shape.kv_head_count
        self.hidden_size, self.feed_forward, self.epsilon = shape.hidden_size, shape.feed_forward, shape.epsilon
        self.attention_scale, self.rotation_scale = shape.attention_scale, shape.rotation_scale
        if len(shape.frequencies) != shape.head_size // 2:
            raise NotCompiledError(f"it turns {2 * len(shape.frequencies)} of a head's {shape.head_size} numbers")
        self.frequencies = np.zeros(self.head_size // 2, np.float32)
        self.frequencies[: len(shape.frequencies)] = shape.frequencies
        embedding = self._take(EMBEDDING)
        if len(embedding) != self.vocabulary_size:
            raise NotCompiledError(f"it has {len(embedding)} embeddings for {self.vocabulary_size} tokens")
        self.bf16 = embedding.dtype == np.uint16
        self.dtype = "bfloat16" if self.bf16 else "float32"
        self.embedding, self.embedding_width, self.embedding_blocks = self._hold(embedding), embedding.itemsize, 0
        self.final_norm = self._vector(NORM)
        head = self._tensors.pop(HEAD, None)
        packed = packed_numbers(embedding if head is None else head)
        self.head, self.vocabulary_columns = self._hold_matrix(packed), packed.outputs
        del embedding, head, packed
        self.layers = np.zeros(shape.layer_count, LAYER)
        self.layers["window"] = shape.windows
        for index, row in self._layers_to_take():
            self._take_layer(row, f"model.layers.{index}.")

    def _take_layer(self, row: Any, of: str) -> None:
        attention, feed = f"{of}self_attn.", f"{of}mlp."
        given = [f"{attention}{name}_proj" for name in "qkv"]
        row["attention_norm"] = self._vector(f"{of}input_layernorm.weight")
        row["feed_norm"] = self._vector(f"{of}post_attention_layernorm.weight")
        row["query_norm"], row["key_norm"] = (
            self._vector(name) if name in self._tensors else 0
            for name in (f"{attention}q_norm.weight", f"{attention}k_norm.weight")
        )
        row["projection"] = self._pack(self._take_projection(given, "weight"))
        output = widened(self._take(f"{attention}o_proj.weight").T, self._own_head_size).T
        row["output"] = self._pack(output)
        gate_up = [self._take(f"{feed}{name}_proj.weight") for name in ("gate", "up")]
        row["gate_up"] = self._pack(alternating(*gate_up))
        row["down"] = self._pack(self._take(f"{feed}down_proj.weight"))
        if f"{given[0]}.bias" in self._tensors:
            row["projection_bias"] = self._hold(_floats(self._take_projection(given, "bias")))
        row["output_bias"] = self._biases([f"{attention}o_proj"])
        row["gate_up_bias"] = self._biases([f"{feed}gate_proj", f"{feed}up_proj"], alternate=True)
        row["down_bias"] = self._biases([f"{feed}down_proj"])

    def _pack(self, matrix: np.ndarray) -> int:
        return self._hold_matrix(packed_numbers(matrix))

    def _take(self, name: str) -> np.ndarray:
        return self._tensors.pop(name)

    def _take_projection(self, given: list[str], kind: str) -> np.ndarray:
        """Take weights or biases of queries, keys and values, with heads of whole tiles."""
        query, key, value = (self._take(f"{name}.{kind}") for name in given)
        size = self._own_head_size
        turned = [widened(each, size, in_halves=True) for each in (query, key)]
        return np.concatenate([*turned, widened(value, size)])

    def _vector(self, name: str) -> int:
        return self._hold(_floats(self._take(name)))

    def _biases(self, names: list[str], *, alternate: bool = False) -> int:
        """Keep the biases of some products, one after another. Return their address, 0 if there are
        none."""
        if f"{names[0]}.bias" not in self._tensors:
            return 0
        parts = [_floats(self._take(f"{name}.bias")) for name in names]
        return self._hold(alternating(*parts) if alternate else np.concatenate(parts))


def _floats(values: np.ndarray) -> Floats32:
    return floats_of(values.view(np.int16)) if values.dtype == np.uint16 else values
