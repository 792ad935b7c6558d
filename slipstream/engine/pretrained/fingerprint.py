"""The fingerprint of a loaded ``PreTrainedModel``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from slipstream.engine.model_fingerprint import SAMPLED_VALUES, model_fingerprint


def weights_fingerprint(model: Any, end_token_ids: tuple[int, ...]) -> str:
    """Return a sha256 over all that a loaded ``PreTrainedModel`` computes with: dtype, kind of
    device, class, config, end tokens, and the names, shapes and 64 evenly spaced values of the
    weights."""
    attention = getattr(model.config, "_attn_implementation", None)
    said = [str(model.dtype), device_kind(model.device), type(model).__name__, attention, list(end_token_ids)]
    return model_fingerprint(said, model.config.to_dict(), _samples(model))


def _samples(model: Any) -> Iterator[tuple[str, tuple[int, ...], np.ndarray]]:
    for name, weight in sorted(model.state_dict().items()):
        values = weight.detach().reshape(-1)
        sample = values[:: max(1, values.numel() // SAMPLED_VALUES)].to("cpu", torch.float32)
        yield name, tuple(weight.shape), sample.numpy()


def device_kind(device: torch.device) -> str:
    """Devices of one kind run the same kernels: a CPU's by its vector instructions, a GPU's by its
    model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {torch.backends.cpu.get_cpu_capability()}"
