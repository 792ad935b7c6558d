"""Reads a GGUF file for compiled forwards: its shape, and its weights packed for products."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.engine.compiled.decoder import (
    Decoder,
    NotCompiledError,
    alternating,
    refuse_odd_pages,
    refuse_odd_sizes,
)
from slipstream.engine.compiled.frequencies import are_frequencies, inverse_frequencies
from slipstream.engine.compiled.gguf_matrix import (
    TYPES,
    Matrix,
    dequantised,
    gated,
    joined,
    matrix_of,
)
from slipstream.engine.compiled.gguf_tensors import Tensor, tensors_in
from slipstream.engine.compiled.packing import Packed
from slipstream.engine.compiled.records import LAYER
from slipstream.engine.compiled.safetensors_file import rounded
from slipstream.engine.config_numbers import is_positive
from slipstream.engine.generation_config import parse_generation_config, read_gguf_generation_config
from slipstream.engine.gguf_file import fingerprint_of, refuse_no_model, shards_of
from slipstream.engine.gguf_metadata import read_header, refuse_no_file
from slipstream.engine.gguf_vocabulary import GgufVocabulary

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Architectures of the shape of `checkpoint_decoder.ARCHITECTURES`. Mistral's models are llama's
here."""

_HALVES_TURN = "llama"
"""The architecture whose queries and keys the converter reorders: pairs that turn together are
neighbours."""

_FOLLOWED = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
}
"""Keys of an architecture that this reader follows."""

_WITHOUT_NUMBERS = {
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",  # of yarn, whose type is refused
    "tensor_data_layout",
    "vocab_size",
}

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "rope.scale_linear": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.type": ("none",),
}
"""Values that change nothing; of other keys these are 0, False and no text."""

_QUANTISATION_VERSION = 2

_MIB = 2**20

log = logging.getLogger(__name__)


class GgufDecoder(Decoder):
    """A model in a GGUF file. Matrices keep their own bits if all are of `gguf_matrix.TYPES`.
    Otherwise all are dequantised."""

    def __init__(self, path: Path, page_size: int, dequantise_to: str | None = None) -> None:
        """``dequantise_to`` is "bfloat16" or "float32"; None refuses what must be dequantised.

        NotCompiledError if another backend has to serve the file, UnsupportedModelError if there is
        no such file.
        """
        super().__init__()
        refuse_no_file(path)
        refuse_odd_pages(page_size)
        paths = shards_of(path)
        headers = {each: read_header(each) for each in paths}
        self._keys = headers[path].keys
        self.architecture = self._said("general.architecture", prefixed=False) or "unknown"
        refuse_no_model(path, self._said("general.type", prefixed=False))
        self._refuse_foreign(len(paths))
        self._tensors = tensors_in(headers)
        types = self._types_of_matrices()
        foreign = [each for each in types if each not in TYPES]
        self.dequantises = bool(foreign)
        """True if all weights are dequantised as they are read."""
        if foreign and dequantise_to is None:
            raise NotCompiledError(f"it has matrices of {', '.join(foreign)}, which no kernel reads")
        self.dtype = str(dequantise_to) if self.dequantises else "+".join(types).lower()
        self.bf16 = self.dtype in ("bf16", "bfloat16")
        self.hidden_size = self._number("embedding_length")
        self.head_count = self._number("attention.head_count")
        self.kv_head_count = self._number("attention.head_count_kv", self.head_count)
        self.head_size = self._number("attention.key_length", self.hidden_size // self.head_count)
        self.feed_forward = self._number("feed_forward_length")
        self._refuse_odd()
        self.context_length = self._number("context_length")
        self.epsilon = self._real("attention.layer_norm_rms_epsilon")
        self.attention_scale, self.rotation_scale = self.head_size**-0.5, 1.0
        vocabulary = GgufVocabulary.from_metadata(self._keys, path)
        self.vocabulary_size, ends = len(vocabulary.tokens), vocabulary.end_token_ids()
        self._take()
        self.frequencies = self._frequencies()
        self.generation = parse_generation_config(
            read_gguf_generation_config(path, lambda key: self._said(key, prefixed=False)), self.vocabulary_size, ends
        )
        self.end_token_ids = self.generation.end_token_ids
        self.sampling_defaults, self.length_defaults = self.generation.sampling, self.generation.lengths
        how = [f"dequantised to {self.dtype}"] if self.dequantises else []
        self.weights_fingerprint = fingerprint_of(paths, ["compiled", str(self.end_token_ids), *how])
        if self._tensors:
            raise NotCompiledError(f"it has tensors that are not known here, like {next(iter(self._tensors))}")
        del self._keys
        if self.dequantises:
            log.info(
                "%s is dequantised from %s to %s: its weights take %.0f MiB of memory, its file has %.0f MiB",
                path,
                " and ".join(types),
                self.dtype,
                sum(each.nbytes for each in self._kept) / _MIB,
                sum(each.stat().st_size for each in paths) / _MIB,
            )

    def _refuse_foreign(self, file_count: int) -> None:
        if self.architecture not in _ARCHITECTURES:
            raise NotCompiledError(f"its architecture is {self.architecture}, none of {', '.join(_ARCHITECTURES)}")
        for name in self._keys:
            key = name.removeprefix(f"{self.architecture}.")
            if key == name or key in _FOLLOWED or key in _WITHOUT_NUMBERS:
                continue
            said = self._said(key)
            if said not in _NEUTRAL.get(key, (None, 0, "")):
                raise NotCompiledError(f"its {key} is {said}")
        for name, expected in (("split.count", file_count), ("general.quantization_version", _QUANTISATION_VERSION)):
            said = self._said(name, prefixed=False)
            if said not in (None, 0, expected):
                raise NotCompiledError(f"its {name} is {said}, not {expected}")

    def _refuse_odd(self) -> None:
        refuse_odd_sizes(self.head_size, self.hidden_size, self.feed_forward)
        if self._number("attention.value_length", self.head_size) != self.head_size:
            raise NotCompiledError("its values have another size than its keys")
        if self._number("rope.dimension_count", self.head_size) != self.head_size:
            raise NotCompiledError("it turns a part of each head")
        if self.head_count % self.kv_head_count:
            raise NotCompiledError("its key heads do not share its query heads evenly")

    def _types_of_matrices(self) -> list[str]:
        """Return the types, from that with the most weights on."""
        sizes: Counter[str] = Counter()
        for tensor in self._tensors.values():
            if len(tensor.shape) > 1:
                sizes[tensor.type.name] += math.prod(tensor.shape)
        return [each for each, _ in sizes.most_common()]

    def _said(self, key: str, *, prefixed: bool = True) -> Any:
        return self._keys.get(f"{self.architecture}.{key}" if prefixed else key)

    def _number(self, key: str, otherwise: int | None = None) -> int:
        said = self._said(key)
        said = otherwise if said is None else said
        if not isinstance(said, int) or said < 1:
            raise NotCompiledError(f"its {key} is {said}")
        return said

    def _real(self, key: str) -> float:
        said = self._said(key)
        if not isinstance(said, float) or not is_positive(said):
            raise NotCompiledError(f"its {key} is {said}")
        return said

    def _frequencies(self) -> np.ndarray:
        """Return transformers' frequencies, divided by the file's factors if it has some."""
        base = self._said("rope.freq_base") or 10000.0
        if not is_positive(base):
            raise NotCompiledError(f"its rope.freq_base is {base}")
        factors = self._tensors.pop("rope_freqs.weight", None)
        with np.errstate(all="ignore"):
            frequencies = inverse_frequencies(float(base), self.head_size)
            if factors is not None:
                frequencies = frequencies / _floats(factors, self.head_size // 2)
        if not are_frequencies(frequencies):
            raise NotCompiledError("its rotary frequencies are not all finite and positive")
        return frequencies

    def _take(self) -> None:
        """All weights."""
        layer_count = self._number("block_count")
        if layer_count > len(self._tensors):
            raise NotCompiledError(f"its block_count is {layer_count}, more than it has tensors")
        self.layers = np.zeros(layer_count, LAYER)
        words = self.vocabulary_size, self.hidden_size
        embedding = self._matrix("token_embd", *words)
        head = self._matrix("output", *words) if "output.weight" in self._tensors else embedding
        packed = self._packed(head)
        self.head, self.vocabulary_columns = self._hold_matrix(packed), packed.outputs
        self._take_embedding(embedding, packed if head is embedding else None)
        self.final_norm = self._vector("output_norm", self.hidden_size)
        for index, row in self._layers_to_take():
            self._take_layer(row, f"blk.{index}.")

    def _take_embedding(self, embedding: Matrix, packed: Packed | None) -> None:
        """``packed`` is the same matrix, if it is the output matrix too."""
        self.embedding, self.embedding_width, self.embedding_blocks = 0, 0, 0
        if embedding.is_quantised:
            self.embedding_blocks = self._hold_matrix(packed or self._packed(embedding))
        else:
            self.embedding, self.embedding_width = self._hold(embedding.rows), embedding.rows.itemsize
            self.embedding_is_float16 = embedding.type == "F16"

    def _take_layer(self, row: Any, of: str) -> None:
        hidden, inner, attended = self.hidden_size, self.feed_forward, self.head_count * self.head_size
        kept = self.kv_head_count * self.head_size
        heads = (self.head_count, self.kv_head_count, 0)
        given = {f"{of}attn_q": attended, f"{of}attn_k": kept, f"{of}attn_v": kept}
        feed = dict.fromkeys((f"{of}ffn_gate", f"{of}ffn_up"), inner)
        row["attention_norm"] = self._vector(f"{of}attn_norm", hidden)
        row["feed_norm"] = self._vector(f"{of}ffn_norm", hidden)
        row["query_norm"] = self._vector(f"{of}attn_q_norm", self.head_size, optional=True)
        row["key_norm"] = self._vector(f"{of}attn_k_norm", self.head_size, optional=True)
        projection = [
            self._in_order(self._matrix(name, outputs, hidden), count)
            for (name, outputs), count in zip(given.items(), heads, strict=True)
        ]
        row["projection"] = self._hold_matrix(*map(self._packed, joined(projection)))
        row["output"] = self._hold_matrix(self._packed(self._matrix(f"{of}attn_output", hidden, attended)))
        gate_up = gated(*(self._matrix(name, outputs, hidden) for name, outputs in feed.items()))
        row["gate_up"] = self._hold_matrix(self._packed(gate_up))
        row["down"] = self._hold_matrix(self._packed(self._matrix(f"{of}ffn_down", hidden, inner)))
        row["projection_bias"] = self._biases(
            given, lambda parts: np.concatenate([self._rows_in_order(*each) for each in zip(parts, heads, strict=True)])
        )
        row["output_bias"] = self._biases({f"{of}attn_output": hidden}, np.concatenate)
        row["gate_up_bias"] = self._biases(feed, lambda parts: alternating(*parts))
        row["down_bias"] = self._biases({f"{of}ffn_down": hidden}, np.concatenate)

    def _matrix(self, name: str, outputs: int, inputs: int) -> Matrix:
        tensor = self._tensors.pop(f"{name}.weight", None)
        if tensor is None:
            raise NotCompiledError(f"it has no {name}.weight")
        _refuse_other_shape(tensor, outputs, inputs)
        if self.dequantises:
            singles = dequantised(tensor).reshape(outputs, -1)
            return Matrix("BF16", rounded(singles)) if self.bf16 else Matrix("F32", singles)
        return matrix_of(tensor)

    def _packed(self, matrix: Matrix) -> Packed:
        return matrix.packed(wide=not self.bf16)

    def _vector(self, name: str, size: int, *, optional: bool = False) -> int:
        tensor = self._tensors.pop(f"{name}.weight", None)
        if tensor is None:
            if optional:
                return 0
            raise NotCompiledError(f"it has no {name}.weight")
        return self._hold(_floats(tensor, size))

    def _biases(self, sizes: Mapping[str, int], join: Callable[[list[np.ndarray]], np.ndarray]) -> int:
        """``sizes`` are by the names of matrices."""
        found = [(tensor, size) for name, size in sizes.items() if (tensor := self._tensors.pop(f"{name}.bias", None))]
        if not found:
            return 0
        if len(found) < len(sizes):
            raise NotCompiledError(f"some of {', '.join(sizes)} have a bias, and some have none")
        return self._hold(join([_floats(*each) for each in found]))

    def _in_order(self, matrix: Matrix, head_count: int) -> Matrix:
        return matrix._replace(rows=self._rows_in_order(matrix.rows, head_count))

    def _rows_in_order(self, rows: np.ndarray, head_count: int) -> np.ndarray:
        """The outputs of queries or keys as checkpoints have them: the first halves of pairs that
        turn together, then the second. 0 for values, which do not turn."""
        if not head_count or self.architecture != _HALVES_TURN:
            return rows
        pairs = rows.reshape(head_count, self.head_size // 2, 2, *rows.shape[1:])
        return pairs.swapaxes(1, 2).reshape(rows.shape)


def _refuse_other_shape(tensor: Tensor, *expected: int) -> None:
    """Raise NotCompiledError unless a tensor has the shape that the file's sizes give it: compiled
    code would read past its end."""
    if tensor.shape != expected:
        raise NotCompiledError(f"its {tensor.name} is {list(tensor.shape)} instead of {list(expected)}")


def _floats(tensor: Tensor, size: int) -> np.ndarray:
    _refuse_other_shape(tensor, size)
    return dequantised(tensor)
