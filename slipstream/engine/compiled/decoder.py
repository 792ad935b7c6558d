"""What a compiled forward knows of a model, and how weights lie for products. `pretrained_decoder`
and `gguf_decoder` read it."""

from __future__ import annotations

import numpy as np
import torch

from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.products import TILE_COLUMNS
from slipstream.sampling.rule import LengthDefaults, SamplingDefaults


class NotCompiledError(Exception):
    """A model that another backend has to serve, and why."""


class Decoder:
    """A model's facts, its weights and where they lie: `slipstream.engine.model.ModelFacts`, and
    what `backend` tells of it. Those who read it from somewhere set all of this."""

    architecture: str
    vocabulary_size: int
    context_length: int
    end_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    length_defaults: LengthDefaults
    dtype: str
    device = torch.device("cpu")
    weights_fingerprint: str

    bf16: bool
    """Whether it computes in bfloat16."""
    quantised: bool
    """Whether its matrices are in eight bits."""
    head_size: int
    head_count: int
    kv_head_count: int
    hidden_size: int
    feed_forward: int
    epsilon: float
    attention_scale: float
    rotation_scale: float
    frequencies: torch.Tensor
    """Of rotary positions: float32 ``[head size / 2]``."""
    embedding: int
    final_norm: int
    head: int
    vocabulary_columns: int
    layers: np.ndarray
    """`records.LAYER` of each."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        """What addresses are of."""

    @property
    def layer_count(self) -> int:
        """How many it has."""
        return len(self.layers)

    @property
    def bytes_per_token(self) -> int:
        """Of keys and values."""
        return self.layer_count * self.kv_head_count * self.head_size * 2 * (2 if self.bf16 else 4)

    def _hold(self, tensor: torch.Tensor) -> int:
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()


def refuse_odd_sizes(head_size: int, hidden_size: int, feed_forward: int) -> None:
    """NotCompiledError for sizes that are no whole tiles."""
    sizes = {"head size": head_size, "hidden_size": hidden_size, "intermediate_size": feed_forward}
    odd = [f"{name} {size}" for name, size in sizes.items() if size % TILE_COLUMNS]
    if odd:
        raise NotCompiledError(f"its {' and '.join(odd)} is no multiple of {TILE_COLUMNS}")


def refuse_odd_pages(page_size: int) -> None:
    """NotCompiledError for pages that are not whole blocks."""
    if page_size % LANES:
        raise NotCompiledError(f"its pages are to have {page_size} tokens, no multiple of {LANES}")


def in_lanes(weight: torch.Tensor) -> torch.Tensor:
    """A matrix ``[outputs, inputs]`` as products read it: ``[outputs / 16, inputs, 16, 1]`` in
    float32, ``[outputs / 16, inputs / 2, 16, 2]`` in bfloat16; outputs are filled up with zeros to
    whole tiles."""
    outputs, inputs = weight.shape
    missing = -outputs % TILE_COLUMNS
    if missing:
        weight = torch.cat([weight, weight.new_zeros(missing, inputs)])
    at_once = 2 if weight.dtype == torch.bfloat16 else 1
    return weight.view(-1, LANES, inputs // at_once, at_once).permute(0, 2, 1, 3).contiguous()


def alternating(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Sixteen outputs of one and sixteen of the other in turn, so that a tile has a gate and what
    goes through it."""
    parts = [each.detach().view(-1, LANES, *each.shape[1:]) for each in (gate, up)]
    return torch.stack(parts, dim=1).flatten(0, 2)
