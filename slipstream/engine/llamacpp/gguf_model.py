"""A GGUF model in memory, and the facts in its file."""

from __future__ import annotations

import ctypes
import logging
import weakref
from pathlib import Path
from typing import Any

from slipstream import stages
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.generation_config import parse_generation_config, read_gguf_generation_config
from slipstream.engine.gguf_file import fingerprint_of, refuse_no_model, shards_of
from slipstream.engine.gguf_metadata import AGAIN, read_header, refuse_no_file
from slipstream.engine.llamacpp import libllama

log = logging.getLogger(__name__)

_FILE_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 7: "q8_0", 15: "q4_k_m", 17: "q5_k_m", 18: "q6_k", 32: "bf16"}
_PROVEN_TYPES = ("f32", "bf16", "q8_0")
_PROVEN_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Weight types and architectures for which tests showed that a row's bits do not depend on its
batch."""

_LONGEST_VALUE = 4096


class GgufModel:
    """`slipstream.engine.model.ModelFacts` of a loaded GGUF file."""

    device = "cpu"

    def __init__(self, path: Path) -> None:
        """Load the file. UnsupportedModelError says what is wrong with it."""
        self.path = path
        self._library = libllama.load()
        refuse_no_file(path)
        self._paths = shards_of(path)
        libllama.messages.clear()
        params = self._library.llama_model_default_params()
        params.n_gpu_layers = 0
        told = self._told_progress()
        params.progress_callback = ctypes.cast(told, ctypes.c_void_p)
        self.handle = self._library.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            said = " ".join(libllama.messages) or "no reason was given"
            raise UnsupportedModelError(f"llama.cpp cannot load {path}: {said}; {AGAIN}")
        weakref.finalize(self, self._library.llama_model_free, self.handle).atexit = False
        model, vocabulary = self.handle, self._library.llama_model_get_vocab(self.handle)
        refuse_no_model(path, self._said("general.type"))
        kind = self._said("general.architecture") or "unknown"
        for name in ("has_encoder", "is_recurrent", "is_hybrid"):
            if getattr(self._library, f"llama_model_{name}")(model):
                raise UnsupportedModelError(
                    f"{path} is of architecture {kind!r}, which {name.replace('_', ' ')}: only decoder-only models whose "
                    "KV can be truncated can be served"
                )
        self.architecture = kind
        self.vocabulary_size = self._library.llama_vocab_n_tokens(vocabulary)
        self.context_length = self._library.llama_model_n_ctx_train(model)
        is_end = self._library.llama_vocab_is_eog
        own_ends = [token for token in range(self.vocabulary_size) if is_end(vocabulary, token)]
        self.generation = parse_generation_config(
            read_gguf_generation_config(path, self._said), self.vocabulary_size, own_ends
        )
        self.end_token_ids = self.generation.end_token_ids
        self.sampling_defaults, self.length_defaults = self.generation.sampling, self.generation.lengths
        file_type = int(self._said("general.file_type") or -1)
        self.dtype = _FILE_TYPES.get(file_type, f"gguf type {file_type}")
        self.bytes_per_token = self._bytes_per_token(kind)
        self.weights_fingerprint = self._fingerprint()

    def _told_progress(self) -> Any:
        """Return the function that llama.cpp calls with the fraction of the weights that is
        loaded."""
        progress = stages.ByteProgress(stages.LOADING, log.info, quiet_seconds=stages.QUIET_SECONDS)
        total = sum(path.stat().st_size for path in self._paths)

        def told(fraction: float, _: object) -> bool:
            progress.reach(fraction * total, total)
            return True  # go on

        return libllama.PROGRESS_CALLBACK(told)

    def refuse_unproven(self) -> None:
        """Raise UnsupportedModelError if the bits of such a model were never tested, or depend on
        the batch."""
        why = "for which tests show that a text does not depend on the batch. A draft may have any"
        others = self._tensor_types() - set(_PROVEN_TYPES)  # the file's own type names only the type of most tensors
        if others:
            raise UnsupportedModelError(
                f"{self.path} has weights of type {', '.join(sorted(others))}; a target's must be {', '.join(_PROVEN_TYPES)}, "
                f"{why}"
            )
        if self.architecture not in _PROVEN_ARCHITECTURES:
            known = ", ".join(_PROVEN_ARCHITECTURES)
            raise UnsupportedModelError(f"{self.path} is a {self.architecture}; a target must be one of {known}, {why}")
        if int(self._said(f"{self.architecture}.expert_count") or 0):
            raise UnsupportedModelError(
                f"{self.path} is a mixture of experts, where a row may be alone at an expert: its bits would depend on the "
                "batch. A draft may be one"
            )

    def _tensor_types(self) -> set[str]:
        return {tensor.type_name.lower() for path in self._paths for tensor in read_header(path).tensors}

    def _said(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(_LONGEST_VALUE)
        length = self._library.llama_model_meta_val_str(self.handle, key.encode(), buffer, _LONGEST_VALUE)
        return None if length < 0 else buffer.value.decode(errors="replace")

    def _bytes_per_token(self, kind: str) -> int:
        model = self.handle
        size = self._library.llama_model_n_embd(model) // self._library.llama_model_n_head(model)
        sizes = [int(self._said(f"{kind}.attention.{part}_length") or size) for part in ("key", "value")]
        return int(
            self._library.llama_model_n_layer(model) * self._library.llama_model_n_head_kv(model) * sum(sizes) * 4
        )

    def _fingerprint(self) -> str:
        """Return a hash of the file, the library, and the processor's instructions that it uses."""
        said = [libllama.fingerprint(), self._library.llama_print_system_info().decode(), str(self.end_token_ids)]
        return fingerprint_of(self._paths, said)
