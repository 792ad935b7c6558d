"""Loads a checkpoint or a GGUF file for compiled forwards, and sees that these say what the model
says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from slipstream.engine.checkpoint import NO_TRUST, Trust, directory_of
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.compiled.pretrained_decoder import PretrainedDecoder, refuse_foreign
from slipstream.engine.generation_config import read_generation_config
from slipstream.engine.model import Segment
from slipstream.engine.pages import MIB
from slipstream.engine.pretrained.loading import architecture_of, load_pretrained, read_config
from slipstream.engine.pretrained.windows import layer_windows

_PROBE_LENGTH = 24
_PROBE_WINDOW = 7
"""Tokens that a query sees in a trial, in layers with a window of any length: a trial of more
tokens than Mistral's 4096 would take minutes. The true length is in the masks that `layer_windows`
reads."""

_POSITION_TOLERANCE = 1e-3
_TOLERANCES = {"float32": 1e-3, "f32": 1e-3, "bfloat16": 0.15, "bf16": 0.15, "q8_0": 0.15}
"""How far logits may be from the model's own, as a root mean square, relatively: rounding takes a
millionth and a hundredth, with random weights a tenth."""


def load_compiled(
    name: str, *, dtype: str, page_size: int, multi_step: bool, threads: int, trust: Trust = NO_TRUST
) -> CompiledBackend:
    """A model directory or hub id. NotCompiledError if another backend has to serve it,
    UnsupportedModelError if none can."""
    if trust.code:
        raise NotCompiledError("it may bring code of its own")
    directory = directory_of(name, weights=True, trust=trust)
    config = read_config(directory, name, trust)
    refuse_foreign(config, architecture_of(config), page_size)
    model = load_pretrained(name, device="cpu", dtype=dtype, attention="sdpa", trust=trust)
    probe = [token % config.vocab_size for token in range(7, 7 + _PROBE_LENGTH)]
    windows = layer_windows(model)
    with torch.inference_mode(), _short_windows(model.config):
        expected = model(input_ids=torch.tensor([probe]), use_cache=False).logits[0].float()
    decoder = PretrainedDecoder(model, read_generation_config(directory), windows)
    compare_positions(model, decoder.frequencies, decoder.rotation_scale, decoder.context_length)
    backend = CompiledBackend(decoder, page_size=page_size, multi_step=multi_step, threads=threads)
    decoder.layers["window"] = [_PROBE_WINDOW if window else 0 for window in windows]
    _compare(backend, probe, expected)
    decoder.layers["window"] = windows
    decoder.generation.log_warnings(name)
    return backend


@contextmanager
def _short_windows(config: Any) -> Iterator[None]:
    """Have transformers make its masks with a window that a trial's tokens are longer than, unless
    the config's own is as long as the context: `layer_windows` then finds none."""
    before = getattr(config, "sliding_window", None)
    if before is None or before >= config.max_position_embeddings:
        yield
        return
    config.sliding_window = _PROBE_WINDOW
    try:
        yield
    finally:
        config.sliding_window = before


@torch.inference_mode()
def compare_positions(model: Any, frequencies: torch.Tensor, scale: float, context_length: int) -> None:
    """NotCompiledError if positions turn otherwise than the model turns them, up to the context's
    end: a trial's few tokens would not show it."""
    size = len(frequencies)
    spread = {context_length - 1, *(2**power for power in range(context_length.bit_length() - 1))}
    for position in sorted(spread):
        cosines, sines = model.model.rotary_emb(torch.empty(1, 1, 1), torch.tensor([[position]]))
        angles = position * frequencies
        expected = torch.cat([cosines.flatten()[:size], sines.flatten()[:size]])
        if not torch.allclose(torch.cat([angles.cos(), angles.sin()]) * scale, expected, atol=_POSITION_TOLERANCE):
            raise NotCompiledError(f"its rotary positions would be others, as at position {position}")


def load_compiled_gguf(
    path: Path, *, page_size: int, multi_step: bool, threads: int, reference: Callable[[list[int]], torch.Tensor]
) -> CompiledBackend:
    """A GGUF file; ``reference`` gives its logits ``[tokens, vocabulary]`` by llama.cpp.
    NotCompiledError if that has to serve it, UnsupportedModelError if nothing can."""
    try:
        from slipstream.engine.compiled.gguf_decoder import GgufDecoder
    except ModuleNotFoundError as error:  # of an extra
        raise NotCompiledError(f"{error.name} is not installed") from error
    decoder = GgufDecoder(path, page_size)
    probe = [token % decoder.vocabulary_size for token in range(7, 7 + _PROBE_LENGTH)]
    backend = CompiledBackend(decoder, page_size=page_size, multi_step=multi_step, threads=threads)
    _compare(backend, probe, reference(probe))
    decoder.generation.log_warnings(path)
    return backend


def _compare(backend: CompiledBackend, probe: list[int], expected: torch.Tensor) -> None:
    """NotCompiledError if compiled forwards say something else than the model. Whatever memory the
    backend has then, it needs other."""
    page_count = -(-len(probe) // backend.page_size)
    backend.reserve((page_count + 0.5) * backend.page_size * backend.model.bytes_per_token / MIB)
    logits = backend.forward([Segment(probe, 0, range(1, page_count + 1), len(probe))])
    distance = float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt())
    if not distance <= _TOLERANCES[backend.model.dtype]:
        raise NotCompiledError(f"its logits would be {distance:.2g} off, relatively")


__all__ = ["NotCompiledError", "load_compiled", "load_compiled_gguf"]
