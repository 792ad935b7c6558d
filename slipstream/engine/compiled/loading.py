"""Loads a checkpoint or a GGUF file for compiled forwards, without torch and transformers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from slipstream import stages
from slipstream.engine.checkpoint import (
    CONFIG,
    NO_TRUST,
    Trust,
    check_config,
    check_weights,
    directory_of,
    some,
    told_of_unread,
)
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.checkpoint_config import CheckpointConfig, UnknownConfigError
from slipstream.engine.compiled.checkpoint_decoder import EMBEDDING, HEAD, CheckpointDecoder
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.compiled.processor import VECTORS
from slipstream.engine.compiled.safetensors_file import StoredTensor, stored_tensors
from slipstream.engine.compiled.trial import compare, trial_tokens
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.generation_config import parse_generation_config, read_generation_config
from slipstream.engine.model_fingerprint import SAMPLED_VALUES, model_fingerprint
from slipstream.sampling.blocks import floats_of
from slipstream.sampling.kernel import Floats32

log = logging.getLogger(__name__)

_DEQUANTISED_TOLERANCE = 0.15
"""Largest distance of dequantised logits from llama.cpp's, as `compare` measures it."""

_LEFT_OUT = "rotary_emb.inv_freq"
"""Ends the names of tensors that older checkpoints hold and nothing reads."""


def load_compiled(
    name: str, *, dtype: str, page_size: int, single_rows: bool, threads: int, trust: Trust = NO_TRUST
) -> CompiledBackend:
    """Load a model directory or hub id. UnknownConfigError if transformers has to read it,
    NotCompiledError if another backend has to serve it, UnsupportedModelError if none can."""
    if trust.code:
        raise NotCompiledError("it may bring code of its own")
    directory = directory_of(name, weights=True, trust=trust)
    check_config(directory, name)
    config = CheckpointConfig(json.loads((directory / CONFIG).read_text(encoding="utf-8")))
    shape = config.shape(page_size)
    if not check_weights(directory, name, trust):
        raise UnknownConfigError("its weights are no safetensors")
    stored = _fitting(stored_tensors(directory), config.tensor_shapes(shape), ties_head=config.ties_head)
    tensors = {key: tensor.read(dtype) for key, tensor in stored.items()}
    _refuse_no_numbers(tensors, name)
    generation = parse_generation_config(read_generation_config(directory), shape.vocabulary_size, config.eos_token_id)
    said = [f"torch.{dtype}", f"cpu {VECTORS}", shape.architecture, "sdpa", list(generation.end_token_ids)]
    fingerprint = model_fingerprint(said, config.read, _samples(tensors))
    decoder = CheckpointDecoder(shape, tensors, generation, fingerprint)
    if config.unread:
        log.warning("%s of %s %s", CONFIG, name, told_of_unread(shape.architecture, config.unread))
    generation.log_warnings(name)
    return CompiledBackend(decoder, page_size=page_size, single_rows=single_rows, threads=threads)


def _fitting(
    stored: Mapping[str, StoredTensor] | None, shapes: Mapping[str, tuple[int, ...]], *, ties_head: bool
) -> Mapping[str, StoredTensor]:
    """Return the tensors of a model. UnknownConfigError if they are not exactly those that its
    config says."""
    if stored is None:
        raise UnknownConfigError("its weights are of types that are not known")
    kept = {key: tensor for key, tensor in stored.items() if not key.endswith(_LEFT_OUT)}
    wanted = {key: shape for key, shape in shapes.items() if not (key == HEAD and ties_head)}
    if ties_head and HEAD in kept and EMBEDDING in kept and kept[HEAD].has_bits_of(kept[EMBEDDING]):
        del kept[HEAD]  # transformers ties both too, which it does only if they are equal
    if missing := wanted.keys() - kept:
        raise UnknownConfigError(f"it lacks {some(missing)}")
    if others := kept.keys() - wanted:
        raise UnknownConfigError(f"it has {some(others)}, which its config.json has no place for")
    if odd := [key for key, shape in wanted.items() if kept[key].shape != shape]:
        raise UnknownConfigError(f"it has tensors of other shapes than its config.json says: {some(odd)}")
    return kept


def _samples(tensors: Mapping[str, np.ndarray]) -> Iterator[tuple[str, tuple[int, ...], Floats32]]:
    """Some values of each weight, by name. An embedding that is the output matrix too has both
    names."""
    named = dict(tensors)
    named.setdefault(HEAD, tensors[EMBEDDING])
    for name, weight in sorted(named.items()):
        sample = weight.reshape(-1)[:: max(1, weight.size // SAMPLED_VALUES)]
        values = floats_of(sample.view(np.int16)) if weight.dtype == np.uint16 else np.ascontiguousarray(sample)
        yield name, weight.shape, values


def _refuse_no_numbers(tensors: Mapping[str, np.ndarray], name: str) -> None:
    faulty, read, total = [], 0, sum(weight.nbytes for weight in tensors.values())
    progress = stages.ByteProgress(stages.CHECKING, log.info, quiet_seconds=stages.QUIET_SECONDS)
    for key, weight in tensors.items():  # the first that reads the files' pages
        if not _are_finite(weight):
            faulty.append(key)
        read += weight.nbytes
        progress.reach(read, total)
    if faulty:
        raise UnsupportedModelError(
            f"{name} has weights that are NaN or infinite, in {some(faulty)}; it was damaged where it was "
            "trained, converted or copied: copy, download or export it again"
        )


def _are_finite(weight: np.ndarray) -> bool:
    if weight.dtype == np.uint16:  # bits of bfloat16: an exponent of ones is no number
        return bool((weight & np.uint16(0x7FFF)).max(initial=0) < 0x7F80)
    return bool(np.isfinite(weight.min(initial=0)) and np.isfinite(weight.max(initial=0)))


def load_compiled_gguf(
    path: Path,
    *,
    page_size: int,
    single_rows: bool,
    threads: int,
    reference: Callable[[list[int]], Floats32] | None,
    dequantise_to: str | None = None,
) -> CompiledBackend:
    """Load a GGUF file. ``dequantise_to`` is as `GgufDecoder` has it.

    ``reference`` gives the file's logits ``[tokens, vocabulary]`` by llama.cpp, and is None where
    that is not installed. NotCompiledError if llama.cpp has to serve the file,
    UnsupportedModelError if nothing can.
    """
    try:
        from slipstream.engine.compiled.gguf_decoder import GgufDecoder
    except ModuleNotFoundError as error:  # of an extra
        raise NotCompiledError(f"{error.name} is not installed") from error
    decoder = GgufDecoder(path, page_size, dequantise_to)
    backend = CompiledBackend(decoder, page_size=page_size, single_rows=single_rows, threads=threads)
    if reference is not None:
        tokens = trial_tokens(decoder.vocabulary_size)
        # llama.cpp rounds the inputs of quantised matrices, which are not rounded once dequantised.
        compare(backend, tokens, reference(tokens), _DEQUANTISED_TOLERANCE if decoder.dequantises else None)
    decoder.generation.log_warnings(path)
    return backend


__all__ = ["NotCompiledError", "UnknownConfigError", "load_compiled", "load_compiled_gguf"]
