"""A model's facts and packed weights, as compiled forwards use them. `checkpoint_decoder` and
`gguf_decoder` fill them in."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from slipstream import stages
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.memory import aligned_copy, aligned_zeros
from slipstream.engine.compiled.products import TILE_COLUMNS
from slipstream.sampling.rule import LengthDefaults, SamplingDefaults

log = logging.getLogger(__name__)


class NotCompiledError(Exception):
    """A model that another backend has to serve. The message says why."""


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
    device = "cpu"
    weights_fingerprint: str

    bf16: bool
    """True if the model computes in bfloat16."""
    quantised: bool
    """True if the matrices are in eight bits."""
    head_size: int
    head_count: int
    kv_head_count: int
    hidden_size: int
    feed_forward: int
    epsilon: float
    attention_scale: float
    rotation_scale: float
    frequencies: np.ndarray
    """Frequencies of rotary positions: float32 ``[head size / 2]``."""
    embedding: int
    final_norm: int
    head: int
    vocabulary_columns: int
    layers: np.ndarray
    """`records.LAYER` of each."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []
        """Arrays whose addresses compiled code uses."""

    @property
    def layer_count(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values for each token."""
        return self.layer_count * self.kv_head_count * self.head_size * 2 * (2 if self.bf16 else 4)

    def _layers_to_take(self) -> Iterator[tuple[int, Any]]:
        """Yield each layer's index and its row, and tell how many have been taken."""
        progress = stages.PartProgress(stages.LOADING, log.info, "layers", quiet_seconds=stages.QUIET_SECONDS)
        for index, row in enumerate(self.layers):
            yield index, row
            progress.reach(index + 1, len(self.layers))

    def _hold(self, values: np.ndarray) -> int:
        """Keep a copy of an array. Return its address."""
        self._kept.append(aligned_copy(values))
        return self._kept[-1].ctypes.data

    def _hold_matrix(self, weight: np.ndarray) -> tuple[int, int]:
        """Keep a matrix ``[outputs, inputs]`` as products read it. Return its address, and how many
        outputs it has with those that fill it up."""
        packed = in_lanes(weight)
        self._kept.append(packed)
        return packed.ctypes.data, packed.shape[0] * LANES


def refuse_odd_sizes(head_size: int, hidden_size: int, feed_forward: int) -> None:
    """Raise NotCompiledError for sizes that are no whole tiles."""
    sizes = {"head size": head_size, "hidden_size": hidden_size, "intermediate_size": feed_forward}
    odd = [f"{name} {size}" for name, size in sizes.items() if size % TILE_COLUMNS]
    if odd:
        raise NotCompiledError(f"its {' and '.join(odd)} is no multiple of {TILE_COLUMNS}")


def refuse_odd_pages(page_size: int) -> None:
    """Raise NotCompiledError for pages that are not whole blocks."""
    if page_size % LANES:
        raise NotCompiledError(f"its pages are to have {page_size} tokens, no multiple of {LANES}")


def in_lanes(weight: np.ndarray) -> np.ndarray:
    """Return a matrix ``[outputs, inputs]`` as products read it: ``[outputs / 16, inputs, 16, 1]``
    in float32, ``[outputs / 16, inputs / 2, 16, 2]`` in bfloat16 (its bits as uint16). Outputs are
    filled up with zeros to whole tiles."""
    outputs, inputs = weight.shape
    at_once = 2 if weight.dtype == np.uint16 else 1
    whole, rest = divmod(outputs, LANES)
    groups = -(-outputs // TILE_COLUMNS) * TILE_COLUMNS // LANES
    packed = aligned_zeros((groups, inputs // at_once, LANES, at_once), weight.dtype)
    blocks = weight[: whole * LANES].reshape(whole, LANES, inputs // at_once, at_once)
    packed[:whole] = blocks.transpose(0, 2, 1, 3)
    if rest:
        packed[whole, :, :rest] = weight[-rest:].reshape(rest, inputs // at_once, at_once).transpose(1, 0, 2)
    return packed


def alternating(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Return sixteen outputs of one and sixteen of the other in turn, so that a tile has a gate and
    what goes through it."""
    parts = [each.reshape(-1, LANES, *each.shape[1:]) for each in (gate, up)]
    return np.stack(parts, axis=1).reshape(-1, *gate.shape[1:])
