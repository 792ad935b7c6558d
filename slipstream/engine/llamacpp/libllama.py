"""The part of libllama's C API that is used here, from the first of two packages that is installed.
llama-cpp-python comes first, which pip builds for this machine. xllamacpp's wheel comes second,
which installs in seconds and runs anywhere.

The structures are those of llama.h in the pinned releases. They carry no version. So the library's
default values are compared with those of llama.h before any other call.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
from collections.abc import Mapping
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.engine.errors import UnsupportedModelError

F32 = 0
"""Number of float32 in ggml."""

_SPARE = 256
"""Bytes after each structure, so that one that has grown at its end is still copied whole."""

INSTALL = "pip install 'slipstream-llm[llamacpp]', or llamacpp-native to have it built for this machine"
"""Commands that install llama.cpp."""

_WARNING = 3
"""A log level of ggml. The levels are none, debug, info, warning and error."""


PROGRESS_CALLBACK = ctypes.CFUNCTYPE(c_bool, c_float, c_void_p)
"""The type llama_progress_callback."""


class ModelParams(ctypes.Structure):
    """The structure llama_model_params."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
        ("spare", c_int8 * _SPARE),
    )


_CONTEXT_NUMBERS = (
    ("n_ctx", c_uint32),
    ("n_batch", c_uint32),
    ("n_ubatch", c_uint32),
    ("n_seq_max", c_uint32),
    ("n_rs_seq", c_uint32),
    ("n_outputs_max", c_uint32),
    ("n_outputs_max_per_seq", c_uint32),
    ("n_threads", c_int32),
    ("n_threads_batch", c_int32),
    ("ctx_type", c_int32),
    ("rope_scaling_type", c_int32),
    ("pooling_type", c_int32),
    ("attention_type", c_int32),
    ("flash_attn_type", c_int32),
    ("rope_freq_base", c_float),
    ("rope_freq_scale", c_float),
    ("yarn_ext_factor", c_float),
    ("yarn_attn_factor", c_float),
    ("yarn_beta_fast", c_float),
    ("yarn_beta_slow", c_float),
    ("yarn_orig_ctx", c_uint32),
    ("defrag_thold", c_float),
    ("cb_eval", c_void_p),
    ("cb_eval_user_data", c_void_p),
    ("type_k", c_int32),
    ("type_v", c_int32),
    ("abort_callback", c_void_p),
    ("abort_callback_data", c_void_p),
)
_CONTEXT_SWITCHES = (
    ("embeddings", c_bool),
    ("offload_kqv", c_bool),
    ("no_perf", c_bool),
    ("op_offload", c_bool),
    ("swa_full", c_bool),
    ("kv_unified", c_bool),
    ("samplers", c_void_p),
    ("n_samplers", c_size_t),
    ("spare", c_int8 * _SPARE),
)


class ContextParams(ctypes.Structure):
    """The structure llama_context_params."""

    _fields_ = (*_CONTEXT_NUMBERS, *_CONTEXT_SWITCHES)


class ContextParamsOfB11549(ctypes.Structure):
    """The structure llama_context_params with one more pointer."""

    _fields_ = (*_CONTEXT_NUMBERS, ("private", c_void_p), *_CONTEXT_SWITCHES)


class Batch(ctypes.Structure):
    """The structure llama_batch."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_free": (None, c_void_p),
    "llama_get_logits": (c_void_p, c_void_p),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_log_set": (None, c_void_p, c_void_p),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_model_default_params": (ModelParams,),
    "llama_model_free": (None, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_has_encoder": (c_bool, c_void_p),
    "llama_model_is_hybrid": (c_bool, c_void_p),
    "llama_model_is_recurrent": (c_bool, c_void_p),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParams),
    "llama_model_meta_val_str": (c_int32, c_void_p, c_char_p, c_char_p, c_size_t),
    "llama_model_n_ctx_train": (c_int32, c_void_p),
    "llama_model_n_embd": (c_int32, c_void_p),
    "llama_model_n_head": (c_int32, c_void_p),
    "llama_model_n_head_kv": (c_int32, c_void_p),
    "llama_model_n_layer": (c_int32, c_void_p),
    "llama_n_ctx_seq": (c_uint32, c_void_p),
    "llama_print_system_info": (c_char_p,),
    "llama_tokenize": (c_int32, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool),
    "llama_vocab_is_eog": (c_bool, c_void_p, c_int32),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
}
"""Functions with their result and argument types."""

_MODEL_DEFAULTS = {
    "main_gpu": 0,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_alloc": False,
}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "yarn_ext_factor": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "kv_unified": False,
    "n_samplers": 0,
}
"""Default values that show whether a structure has the layout declared here."""


@dataclass(frozen=True, slots=True)
class Build:
    """A package that contains libllama."""

    distribution: str
    """Name of the package for pip."""

    package: str
    pattern: str
    """Path of the library in the package's folder. All files with that suffix in the library's
    folder affect the bits."""

    context_params: type[ctypes.Structure]


BUILDS = (
    Build("llama-cpp-python", "llama_cpp", "lib/libllama.*", ContextParams),
    Build("xllamacpp", "xllamacpp", "xllamacpp*.so", ContextParamsOfB11549),
)
"""Supported packages. The first one that is installed is used."""


def installed() -> tuple[Build, Path]:
    """Return the package in use and its library file. UnsupportedModelError if none is
    installed."""
    for build in BUILDS:
        spec = importlib.util.find_spec(build.package)
        if spec is not None and spec.origin is not None:
            for path in sorted(Path(spec.origin).parent.glob(build.pattern)):
                return build, path
    raise UnsupportedModelError(f"GGUF models need llama.cpp: {INSTALL}")


@functools.cache
def has_row_kernels() -> bool:
    """Return True if the library has kernels that compute several rows differently from one."""
    said = load().llama_print_system_info().decode()
    return any(f"{kernels} = 1" in said for kernels in ("LLAMAFILE", "REPACK"))


@functools.cache
def fingerprint() -> str:
    """Return the sha256 of the library's machine code, because another build may compute other
    bits."""
    _, path = installed()
    digest = hashlib.sha256()
    for part in sorted(path.parent.glob(f"*{path.suffix}*")):
        digest.update(part.read_bytes())
    return digest.hexdigest()


@functools.cache
def load() -> Any:
    """Return the library, ready for use. UnsupportedModelError if it is not installed or is an
    unknown version."""
    build, path = installed()
    params = build.context_params
    functions = _FUNCTIONS | {
        "llama_context_default_params": (params,),
        "llama_init_from_model": (c_void_p, c_void_p, params),
    }
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise _other(str(error)) from error
    _compare("llama_model_params", library.llama_model_default_params(), _MODEL_DEFAULTS)
    _compare("llama_context_params", library.llama_context_default_params(), _CONTEXT_DEFAULTS)
    library.llama_log_set(_listener, None)
    library.llama_backend_init()
    return library


def _compare(structure: str, found: ctypes.Structure, expected: Mapping[str, float]) -> None:
    for name, value in expected.items():
        if getattr(found, name) != value:
            raise _other(f"{structure}.{name} is {getattr(found, name)} by default, not {value}")


def _other(why: str) -> UnsupportedModelError:
    build, _ = installed()
    return UnsupportedModelError(f"the llama.cpp of {build.distribution} is not a supported version ({why}): {INSTALL}")


messages: list[str] = []
"""Warnings and errors that the library has logged since the last call that cleared them."""


def _listen(level: int, text: bytes, _: object) -> None:
    if level >= _WARNING and text.strip():
        messages.append(text.decode(errors="replace").strip())
        del messages[:-8]


_listener = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(_listen)
