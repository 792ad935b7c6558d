"""Loads a checkpoint or a GGUF file for compiled forwards, and sees that these say what the model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GenerationConfig

from slipstream.engine.checkpoint import NO_TRUST, Trust, directory_of
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.compiled.pretrained_decoder import PretrainedDecoder, refuse_foreign
from slipstream.engine.model import Segment
from slipstream.engine.pages import MIB
from slipstream.engine.pretrained.loading import architecture_of, load_pretrained, read_config

_PROBE_LENGTH = 24
_TOLERANCES = {"float32": 1e-3, "f32": 1e-3, "bfloat16": 0.15, "bf16": 0.15, "q8_0": 0.15}
"""How far logits may be from the model's own, as a root mean square, relatively: rounding takes a millionth and a hundredth,
with random weights a tenth."""


def load_compiled(
    name: str, *, dtype: str, page_size: int, runs_on: bool, threads: int, trust: Trust = NO_TRUST
) -> CompiledBackend:
    """A model directory or hub id. NotCompiledError if another backend has to serve it, UnsupportedModelError if none can."""
    if trust.code:
        raise NotCompiledError("it may bring code of its own")
    config = read_config(directory_of(name, weights=True, trust=trust), name, trust)
    refuse_foreign(config, architecture_of(config), page_size)
    model = load_pretrained(name, device="cpu", dtype=dtype, attention="sdpa", trust=trust)
    probe = [token % config.vocab_size for token in range(7, 7 + _PROBE_LENGTH)]
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([probe]), use_cache=False).logits[0].float()
    decoder = PretrainedDecoder(model, model.generation_config or GenerationConfig())
    backend = CompiledBackend(decoder, page_size=page_size, runs_on=runs_on, threads=threads)
    _compare(backend, probe, expected)
    return backend


def load_compiled_gguf(
    path: Path, *, page_size: int, runs_on: bool, threads: int, reference: Callable[[list[int]], torch.Tensor]
) -> CompiledBackend:
    """A GGUF file; ``reference`` gives its logits ``[tokens, vocabulary]`` by llama.cpp. NotCompiledError if that has to serve
    it, UnsupportedModelError if nothing can."""
    try:
        from slipstream.engine.compiled.gguf_decoder import GgufDecoder
    except ModuleNotFoundError as error:  # of an extra
        raise NotCompiledError(f"{error.name} is not installed") from error
    decoder = GgufDecoder(path, page_size)
    probe = [token % decoder.vocabulary_size for token in range(7, 7 + _PROBE_LENGTH)]
    backend = CompiledBackend(decoder, page_size=page_size, runs_on=runs_on, threads=threads)
    _compare(backend, probe, reference(probe))
    return backend


def _compare(backend: CompiledBackend, probe: list[int], expected: torch.Tensor) -> None:
    """NotCompiledError if compiled forwards say something else than the model. Whatever memory the backend has then, it needs
    other."""
    page_count = -(-len(probe) // backend.page_size)
    backend.reserve((page_count + 0.5) * backend.page_size * backend.model.bytes_per_token / MIB)
    logits = backend.forward([Segment(probe, 0, range(1, page_count + 1), len(probe))])
    distance = float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt())
    if not distance <= _TOLERANCES[backend.model.dtype]:
        raise NotCompiledError(f"its logits would be {distance:.2g} off, relatively")


__all__ = ["NotCompiledError", "load_compiled", "load_compiled_gguf"]
