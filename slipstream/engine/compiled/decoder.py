"""A model's facts and packed weights, as compiled forwards use them. `checkpoint_decoder` and
`gguf_decoder` fill them in."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from slipstream import stages
from slipstream.engine.compiled.block_types import BLOCK_TYPES
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.memory import aligned_copy
from slipstream.engine.compiled.packing import Packed
from slipstream.engine.compiled.products import TILE_COLUMNS
from slipstream.engine.compiled.records import MATRIX, MATRIX_PARTS
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
    embedding_width: int
    embedding_is_float16: bool = False
    embedding_blocks: int
    final_norm: int
    head: int
    vocabulary_columns: int
    layers: np.ndarray
    """`records.LAYER` of each."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []
        """Arrays whose addresses compiled code uses."""
        self._matrices: list[tuple[np.ndarray, list[str]]] = []

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

    def _hold_matrix(self, *parts: Packed) -> int:
        """Keep a matrix whose outputs are those of its ``parts``, one after another. Return the
        address of its record."""
        record = np.zeros(MATRIX_PARTS, MATRIX)
        first = 0
        for row, part in zip(record, parts, strict=False):
            end = first + part.outputs // TILE_COLUMNS
            row["end"], row["column_bytes"] = end, part.column_bytes
            row["place"] = part.data.ctypes.data - first * TILE_COLUMNS // LANES * part.column_bytes
            row["steps"], row["row_bytes"], row["is_quantised"] = part.steps, part.row_bytes, part.is_quantised
            first = end
            self._kept.append(part.data)
        self._matrices.append((record, [part.kind for part in parts]))
        return record.ctypes.data

    @property
    def product_kinds(self) -> set[str]:
        """Kinds of tiles that read the matrices."""
        return {kind for _, kinds in self._matrices for kind in kinds}

    @property
    def quantised(self) -> bool:
        """True if there are quantised matrices."""
        return not self.product_kinds.isdisjoint(BLOCK_TYPES)

    def tell_tiles(self, places: Mapping[str, int]) -> None:
        """Tell matrices where the tiles of each kind are."""
        for record, kinds in self._matrices:
            record["tile"][: len(kinds)] = [places[kind] for kind in kinds]


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


def alternating(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Return sixteen outputs of one and sixteen of the other in turn, so that a tile has a gate and
    what goes through it."""
    parts = [each.reshape(-1, LANES, *each.shape[1:]) for each in (gate, up)]
    return np.stack(parts, axis=1).reshape(-1, *gate.shape[1:])
