"""The fingerprint of a loaded ``PreTrainedModel``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from slipstream.engine.model_fingerprint import SAMPLED_VALUES, model_fingerprint
from slipstream.engine.pretrained.quantisation import is_packed

Sample = tuple[str, tuple[int, ...], np.ndarray]
"""The name, the shape and some values of a weight."""

_USUAL_EXPERTS = "grouped_mm"
"""Implementation of experts that transformers chooses. Fingerprints did not name it at first."""


def weights_fingerprint(model: Any, end_token_ids: tuple[int, ...]) -> str:
    """Return a sha256 over all that a loaded ``PreTrainedModel`` computes with: dtype, kind of
    device, class, config, end tokens, and the names, shapes and 64 evenly spaced values of the
    weights."""
    return fingerprint_of(model, _samples(model), end_token_ids)


def fingerprint_of(model: Any, samples: Iterable[Sample], end_token_ids: tuple[int, ...]) -> str:
    """Return `weights_fingerprint` of a model whose weights have these ``samples``."""
    attention = getattr(model.config, "_attn_implementation", None)
    said = [str(model.dtype), device_kind(model.device), type(model).__name__, attention, list(end_token_ids)]
    if experts_of(model) not in (None, _USUAL_EXPERTS):
        said.append(experts_of(model))
    return model_fingerprint(said, model.config.to_dict(), samples)


def sampled_places(value_count: int) -> range:
    """Return the places of a weight's sampled values."""
    return range(0, value_count, max(1, value_count // SAMPLED_VALUES))


def experts_of(model: Any) -> str | None:
    """Return the name of the implementation of a loaded model's experts, None if it has none behind
    transformers' interface."""
    has_experts = any(hasattr(module, "_is_expert_parallel") for module in model.modules())
    return model.config.get_text_config()._experts_implementation if has_experts else None


def _samples(model: Any) -> Iterator[Sample]:
    for name, weight in sorted(model.state_dict().items()):
        values = (weight.dequantize() if is_packed(weight) else weight.detach()).reshape(-1)
        sample = values[:: sampled_places(values.numel()).step].to("cpu", torch.float32)
        yield name, tuple(weight.shape), sample.numpy()


def device_kind(device: torch.device) -> str:
    """Devices of one kind run the same kernels: a CPU's by its vector instructions, a GPU's by its
    model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {torch.backends.cpu.get_cpu_capability()}"
