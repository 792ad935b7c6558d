"""Memory that forwards compute in."""

from __future__ import annotations

import numpy as np

from slipstream.engine.compiled.block_types import BLOCK, BLOCK_TYPES
from slipstream.engine.compiled.decoder import Decoder
from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.compiled.matrices import MOST_ROWS
from slipstream.engine.compiled.memory import aligned_zeros
from slipstream.engine.compiled.products import TILE_COLUMNS
from slipstream.engine.compiled.quantised import INPUT_BYTES

_LEAST_ROWS, _LEAST_KEYS = 64, 1024
_ROUNDED = 1024
"""Numbers: no two threads write to one line of a cache."""


_GROUP = LANES * max(kind.group_inputs for kind in BLOCK_TYPES.values())
"""Numbers: weights of a group."""


class Workspace:
    """Memory for the largest step so far."""

    def __init__(self, model: Decoder, threads: int) -> None:
        self._model = model
        self._threads = threads
        self._rows = self._longest = 0
        self._kept: list[np.ndarray] = []
        self._kept_layers: tuple[int, ...] = ()
        self.inputs: np.ndarray = np.empty((0, 0, 0), np.float32)
        """Inputs of the layers that are kept for heads: float32 ``[layers, rows, hidden size]``."""

    def keep_inputs(self, layers: tuple[int, ...]) -> None:
        """Keep the inputs of layers from the next step on."""
        self._kept_layers = layers
        self._rows = self._longest = 0

    def make_room(self, step: np.ndarray) -> None:
        """Enough for what ``step`` says; tell it where."""
        rows, longest = int(step["row_count"]), int(step["longest"])
        if rows > self._rows or longest > self._longest:
            self._rows = max(rows, self._rows, _LEAST_ROWS)
            self._longest = max(longest, self._longest, _LEAST_KEYS)
            self._reserve(step)

    def _reserve(self, step: np.ndarray) -> None:
        model, rows = self._model, self._rows + MOST_ROWS  # the matrix unit reads and writes past the last
        attended = model.head_count * model.head_size
        scores = int(step["most_queries"]) * (2 * self._longest + model.head_size + LANES)
        products = rows * TILE_COLUMNS
        if model.quantised:
            products += rows * max(model.hidden_size, attended, model.feed_forward) // BLOCK * INPUT_BYTES // 4
        scratch = -(-max(scores, products, model.head_size, _GROUP) // _ROUNDED) * _ROUNDED
        sizes = {
            "residual": rows * model.hidden_size,
            "wanted_residual": rows * model.hidden_size,
            "inputs": rows * max(model.hidden_size, attended),
            "projected": rows * (attended + 2 * model.kv_head_count * model.head_size),
            "queries": rows * attended,
            "gated": rows * model.feed_forward,
            "rotations": rows * model.head_size,
            "scratch": scratch * self._threads,
        }
        self._kept = [aligned_zeros([size], np.float32) for size in sizes.values()]  # bfloat16 take half of it
        for name, memory in zip(sizes, self._kept, strict=True):
            step[name] = memory.ctypes.data
        step["scratch_bytes"] = 4 * scratch
        self.inputs = aligned_zeros([len(self._kept_layers), rows, model.hidden_size], np.float32)
        for layer, memory in zip(self._kept_layers, self.inputs, strict=True):
            model.layers["kept_input"][layer] = memory.ctypes.data
