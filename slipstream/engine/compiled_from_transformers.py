"""Loads a checkpoint for compiled forwards by transformers, where our own reader does not know all
of its config.json.

transformers' class is then the reference: its rotary positions, its masks and the logits of a short
trial are compared with the compiled ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from slipstream.engine.checkpoint import NO_TRUST, Trust, directory_of
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.checkpoint_decoder import CheckpointDecoder, Shape, refuse_foreign
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.compiled.trial import compare, trial_tokens
from slipstream.engine.generation_config import parse_generation_config, read_generation_config
from slipstream.engine.pretrained import rotary
from slipstream.engine.pretrained.fingerprint import weights_fingerprint
from slipstream.engine.pretrained.loading import architecture_of, load_pretrained, read_config
from slipstream.engine.pretrained.windows import layer_windows

_PROBE_WINDOW = 7
"""Tokens that a query sees in a trial, in layers with a window of any length. A trial of more
tokens than Mistral's 4096 would take minutes. The true length is in the masks that `layer_windows`
reads."""

_POSITION_TOLERANCE = 1e-3


def load_compiled_by_transformers(
    name: str, *, dtype: str, page_size: int, single_rows: bool, threads: int, trust: Trust = NO_TRUST
) -> CompiledBackend:
    """Load a model directory or hub id. NotCompiledError if another backend has to serve it,
    UnsupportedModelError if none can."""
    directory = directory_of(name, weights=True, trust=trust)
    config = read_config(directory, name, trust)
    refuse_foreign(config, architecture_of(config), page_size)
    model = load_pretrained(name, device="cpu", dtype=dtype, attention="sdpa", trust=trust)
    tokens = trial_tokens(config.vocab_size)
    windows = layer_windows(model)
    with torch.inference_mode(), _short_windows(model.config):
        expected = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
    compare_positions(model, shape_of(model, windows))
    decoder = decoder_of(model, read_generation_config(directory), windows)
    backend = CompiledBackend(decoder, page_size=page_size, single_rows=single_rows, threads=threads)
    decoder.layers["window"] = [_PROBE_WINDOW if window else 0 for window in windows]
    compare(backend, tokens, expected)
    decoder.layers["window"] = windows
    decoder.generation.log_warnings(name)
    return backend


def decoder_of(model: Any, generation: Mapping[str, Any], windows: list[int] | None = None) -> CheckpointDecoder:
    """Take a loaded ``PreTrainedModel`` apart: it cannot compute any more.

    ``generation`` is its generation_config.json; ``windows`` are its layers', by default those that
    `layer_windows` learns. NotCompiledError if compiled forwards cannot compute it.
    """
    shape = shape_of(model, layer_windows(model) if windows is None else windows)
    said = parse_generation_config(generation, shape.vocabulary_size, model.config.eos_token_id)
    fingerprint = weights_fingerprint(model, said.end_token_ids)
    tensors = {name: _array_of(weight) for name, weight in model.state_dict().items()}
    if model.lm_head.weight is model.model.embed_tokens.weight:
        del tensors["lm_head.weight"]
    for weight in model.parameters():
        weight.data = torch.empty(0, dtype=weight.dtype)
    return CheckpointDecoder(shape, tensors, said, fingerprint)


def shape_of(model: Any, windows: list[int]) -> Shape:
    """Return the shape of a loaded ``PreTrainedModel``. NotCompiledError if compiled forwards
    cannot compute it."""
    config, base = model.config, model.model
    refuse_foreign(config, type(model).__name__)
    first = base.layers[0].self_attn
    return Shape(
        architecture=type(model).__name__,
        vocabulary_size=int(model.get_output_embeddings().weight.shape[0]),
        context_length=rotary.steady_context_length(config, int(config.max_position_embeddings)),
        layer_count=len(base.layers),
        hidden_size=int(config.hidden_size),
        feed_forward=int(config.intermediate_size),
        head_size=int(first.head_dim),
        head_count=int(config.num_attention_heads),
        kv_head_count=int(config.num_key_value_heads),
        epsilon=float(config.rms_norm_eps),
        attention_scale=float(first.scaling),
        rotation_scale=float(base.rotary_emb.attention_scaling),
        frequencies=base.rotary_emb.inv_freq.float().numpy(),
        windows=tuple(windows),
    )


def _array_of(weight: torch.Tensor) -> np.ndarray:
    weight = weight.detach().contiguous()
    return weight.view(torch.uint16).numpy() if weight.dtype == torch.bfloat16 else weight.numpy()


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
def compare_positions(model: Any, shape: Shape) -> None:
    """Raise NotCompiledError if positions turn otherwise than the model turns them, up to the
    context's end: a trial's few tokens would not show it."""
    frequencies, size = torch.from_numpy(shape.frequencies), len(shape.frequencies)
    length = shape.context_length
    spread = {length - 1, *(2**power for power in range(length.bit_length() - 1))}
    for position in sorted(spread):
        cosines, sines = model.model.rotary_emb(torch.empty(1, 1, 1), torch.tensor([[position]]))
        angles = position * frequencies
        expected = torch.cat([cosines.flatten()[:size], sines.flatten()[:size]])
        turned = torch.cat([angles.cos(), angles.sin()]) * shape.rotation_scale
        if turned.shape != expected.shape or not torch.allclose(turned, expected, atol=_POSITION_TOLERANCE):
            raise NotCompiledError(f"its rotary positions would be others, as at position {position}")
