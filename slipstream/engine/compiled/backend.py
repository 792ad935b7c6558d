"""A model of Llama's family as the engine drives it: steps in, logits out, by one call of compiled
code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial

import numpy as np

from slipstream.engine.compiled.block_types import BLOCK_TYPES
from slipstream.engine.compiled.compilation import compile_for
from slipstream.engine.compiled.decoder import Decoder
from slipstream.engine.compiled.forward import Walk, compiled_walk, phase_count
from slipstream.engine.compiled.hidden_states import CompiledStates
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
from slipstream.engine.hidden_heads import HiddenStates
from slipstream.engine.model import MultiStepRunner, Reserved, Segment
from slipstream.engine.pages import pages_in
from slipstream.engine.sequence import PageCopy
from slipstream.processors import own_processors
from slipstream.sampling.kernel import Floats32

_SHAPE = """
    hidden_size head_count kv_head_count head_size feed_forward vocabulary_columns layer_count bf16
    embedding embedding_width embedding_is_float16 embedding_blocks final_norm head
    epsilon rotation_scale attention_scale
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
        numbers = BF16_INSTRUCTION if model.bf16 else "+".join(sorted(model.product_kinds))
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
        products = {kind: "matrix_products" if in_matrices else f"{kind}_products" for kind in model.product_kinds}
        values, scores = attention_kinds(bf16=model.bf16)
        compile_for([*sorted(products.values()), values, scores], choosing_first=single_rows)
        self._team = Team(threads, phase_count(model.layer_count))
        self._step["team"], self._step["thread_count"] = self._team.place, threads
        model.tell_tiles({kind: place_of(tile) for kind, tile in products.items()})
        self._step["values"], self._step["scores"] = place_of(values), place_of(scores)
        self.hidden_states: HiddenStates | None = CompiledStates(model, self._step, self._workspace)
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


def attention_kinds(*, bf16: bool) -> tuple[str, str]:
    """Return the kinds of tiles of attention's values and keys."""
    if _in_matrices(bf16=bf16):
        return "matrix_values", "matrix_scores"
    return ("bf16_products", "bf16_scores") if bf16 else ("float_products", "float_scores")


def all_kinds() -> Iterator[list[str]]:
    """Yield the kinds of tiles that models may need, the most common ones first."""
    for bf16 in (True, False):
        products = "matrix_products" if _in_matrices(bf16=bf16) else "bf16_products" if bf16 else "float_products"
        yield [products, *attention_kinds(bf16=bf16)]
    yield [f"{name}_products" for name in (*BLOCK_TYPES, "half", "wide_bf16")]


def _help(walk: Walk, step: np.ndarray, layers: np.ndarray, thread: int) -> None:
    """On a helper: it may look at both until it ends."""
    walk(step.ctypes.data, thread)
