"""A model of Llama's family as the engine drives it: steps in, logits out, by one call of compiled
code."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np

from slipstream.engine.compiled.compilation import compile_for
from slipstream.engine.compiled.decoder import Decoder
from slipstream.engine.compiled.forward import Walk, compiled_walk, phase_count
from slipstream.engine.compiled.layout import Layout
from slipstream.engine.compiled.matrices import MATRIX_ROWS
from slipstream.engine.compiled.memory import aligned_zeros
from slipstream.engine.compiled.multi_step_runner import CompiledRunner
from slipstream.engine.compiled.processor import HAS_MATRICES
from slipstream.engine.compiled.products import BF16_INSTRUCTION, TILE_ROWS
from slipstream.engine.compiled.records import STEP
from slipstream.engine.compiled.team import Team
from slipstream.engine.compiled.tiles import place_of
from slipstream.engine.compiled.workspace import Workspace
from slipstream.engine.model import MultiStepRunner, Reserved, Segment
from slipstream.engine.pages import pages_in
from slipstream.engine.sequence import PageCopy
from slipstream.processors import own_processors
from slipstream.sampling.kernel import Floats32

_SHAPE = """
    hidden_size head_count kv_head_count head_size feed_forward vocabulary_columns layer_count bf16 quantised
    embedding final_norm head epsilon rotation_scale attention_scale
""".split()
"""Fields that a `records.STEP` takes over from the model."""


class CompiledBackend:
    """`slipstream.engine.model.Backend` of a `Decoder`."""

    settled_after = 1
    warmed_lengths: tuple[int, ...] = ()
    row_multiple = 1
    pads_sequences = False
    multi_step = True

    def __init__(self, model: Decoder, *, page_size: int, single_rows: bool, threads: int) -> None:
        """``page_size`` is a multiple of sixteen. ``single_rows`` as
        `slipstream.engine.model.Backend` has it."""
        self.model = model
        self.single_rows = single_rows
        self.processors = own_processors(threads)
        numbers = "eighths" if model.quantised else BF16_INSTRUCTION if model.bf16 else "float32"
        self.mark = hashlib.sha256(f"compiled {numbers}".encode()).hexdigest()[:4]
        self.page_size = page_size
        in_matrices = _in_matrices(bf16=model.bf16)
        most_queries = MATRIX_ROWS if in_matrices else TILE_ROWS
        self._most_rows = max(1, most_queries // (model.head_count // model.kv_head_count))
        """Most rows of a part of attention: all of its queries of a key head are a tile's rows."""
        self._memory: np.ndarray = np.empty((0, 0, 0))
        self._workspace = Workspace(model, threads)
        self._step = np.zeros((), STEP)
        for name in _SHAPE:
            self._step[name] = getattr(model, name)
        self._step["in_matrices"], self._step["most_queries"] = in_matrices, most_queries
        self._step["layers"] = model.layers.ctypes.data
        self._step["frequencies"] = model.frequencies.ctypes.data
        kinds = tile_kinds(bf16=model.bf16, quantised=model.quantised)
        compile_for(kinds, choosing_first=single_rows)
        self._team = Team(threads, phase_count(model.layer_count))
        self._step["team"], self._step["thread_count"] = self._team.place, threads
        for name, kind in zip(("products", "values", "scores"), kinds, strict=True):
            self._step[name] = place_of(kind)
        self._walk = compiled_walk()
        self._team.start(partial(_help, self._walk, self._step, model.layers))
        self.multi_step_runner: MultiStepRunner | None = CompiledRunner(
            model, self._step, self._workspace, self._walk, page_size=page_size, most_rows=self._most_rows
        )

    def reserve(self, memory_mib: float) -> Reserved:
        model = self.model
        page_bytes = model.bytes_per_token * self.page_size
        page_count = pages_in(memory_mib, page_bytes)
        shape = 2 * model.layer_count, page_count + 1, self.page_size * model.kv_head_count * model.head_size
        self._memory = aligned_zeros(shape, np.uint16 if model.bf16 else np.float32)
        places = [part.ctypes.data for part in np.split(self._memory, len(self._memory))]
        model.layers["keys"], model.layers["values"] = places[: model.layer_count], places[model.layer_count :]
        return Reserved(page_count, self.page_size, page_count * page_bytes)

    def copy_pages(self, copies: list[PageCopy]) -> None:
        for copy in copies:
            self._memory[:, copy.destination] = self._memory[:, copy.source]

    def erase_pages(self, pages: list[int]) -> None:
        self._memory[:, pages] = 0

    def forward(self, segments: list[Segment]) -> Floats32:
        layout, step, model = Layout(segments, self.page_size, self._most_rows), self._step, self.model
        layout.tell(step)
        self._workspace.make_room(step)
        logits = np.empty((layout.wanted_count, model.vocabulary_columns), np.float32)
        step["logits"] = logits.ctypes.data
        self._walk(step.ctypes.data, 0)
        if model.vocabulary_columns == model.vocabulary_size:
            return logits
        return np.ascontiguousarray(logits[:, : model.vocabulary_size])


def _in_matrices(*, bf16: bool) -> bool:
    """Return True if the processor's matrix unit computes such a model."""
    return HAS_MATRICES and bf16


def tile_kinds(*, bf16: bool, quantised: bool) -> tuple[str, str, str]:
    """Return the kinds of tiles of a model's matrices, and of attention's values and keys."""
    if _in_matrices(bf16=bf16):
        return "matrix_products", "matrix_values", "matrix_scores"
    width = "bf16" if bf16 else "float"
    return "quantised_products" if quantised else f"{width}_products", f"{width}_products", f"{width}_scores"


def _help(walk: Walk, step: np.ndarray, layers: np.ndarray, thread: int) -> None:
    """On a helper: it may look at both until it ends."""
    walk(step.ctypes.data, thread)
