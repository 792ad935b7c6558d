"""The backend of a GGUF model in libllama: each sequence's KV is a stream of libllama's memory,
which is one page here.

Batch invariance on the CPU was measured with llama.cpp b11284 and b11549 in f32, bf16 and Q8_0,
with KV in float32 and a stream for each sequence. Built without llamafile's kernels and without
repacked weights, a row has the same bits regardless of what is computed beside it. Built with them,
this holds for every row count above one. A lone row takes another path there. So does a row that
alone is asked for its logits, because the last layer computes only such rows. With such a build,
where bits are promised, each sequence therefore has at least two rows, two of them asked for
logits. Sequences with equal row counts share a batch. libllama would split others by their common
length, and leave a lone row of the longest.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.engine.engine import PROFILED_COUNTS
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.hidden_heads import HiddenStates
from slipstream.engine.llamacpp import libllama
from slipstream.engine.llamacpp.gguf_model import GgufModel
from slipstream.engine.llamacpp.rows import Rows
from slipstream.engine.model import MultiStepRunner, Reserved, Segment
from slipstream.engine.pages import MIB
from slipstream.engine.sequence import PageCopy
from slipstream.processors import own_processors
from slipstream.sampling.kernel import Floats32

STREAM_MULTIPLE = 256
"""Cells that libllama rounds a stream up to."""

_PADDED_ROWS = 2
"""Fewest rows of a sequence, if a lone row has other bits than one of several."""

_PROPOSAL_ROOM = 64
"""Cells beyond a context. A turn that uses the whole context is counted with a proposal's tokens,
and must still take one stream."""

_MOST_STREAMS = 64


class LlamaCppBackend:
    """`slipstream.engine.model.Backend` of a GGUF file."""

    settled_after = 1
    warmed_lengths: tuple[int, ...] = ()
    hidden_states: HiddenStates | None = None
    multi_step_runner: MultiStepRunner | None = None

    def __init__(self, path: Path, *, threads: int, most_tokens: int, exact: bool) -> None:
        """``most_tokens`` go into one forward. ``exact`` promises that a row's bits depend on its
        sequence alone. UnsupportedModelError says what is wrong with the file, or why it cannot
        promise that."""
        self.model = GgufModel(path)
        if exact:
            self.model.refuse_unproven()
        self._library = libllama.load()
        self._threads = threads
        self.processors = own_processors(threads)
        self._least_rows = _PADDED_ROWS if exact and libllama.has_row_kernels() else 1
        self._most_rows = max(self._least_rows * most_tokens, max(PROFILED_COUNTS))
        self.single_rows = self.multi_step = not exact
        self.row_multiple = self._least_rows
        self.pads_sequences = self._least_rows > 1
        self.mark = hashlib.sha256(f"llamacpp rows={self._least_rows}".encode()).hexdigest()[:4]
        self._context: int | None = None
        self._cell_count = 0
        """Cells of each stream."""

    def reserve(self, memory_mib: float) -> Reserved:
        fitting = math.floor(memory_mib * MIB / self.model.bytes_per_token) // STREAM_MULTIPLE * STREAM_MULTIPLE
        longest = self.model.context_length + _PROPOSAL_ROOM + _PADDED_ROWS
        wished = -(-longest // STREAM_MULTIPLE) * STREAM_MULTIPLE
        if not fitting:
            least = STREAM_MULTIPLE * self.model.bytes_per_token / MIB
            raise UnsupportedModelError(
                f"kv_memory_mib of {memory_mib:g} holds no sequence; one of {STREAM_MULTIPLE} tokens takes {least:.2g} MiB"
            )
        cells = min(fitting, wished)
        streams = min(_MOST_STREAMS, fitting // cells)
        params = self._library.llama_context_default_params()
        params.n_ctx, params.n_seq_max = cells * streams, streams
        params.n_batch = params.n_ubatch = params.n_outputs_max = params.n_outputs_max_per_seq = self._most_rows
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type, params.type_k, params.type_v = 0, libllama.F32, libllama.F32
        params.kv_unified, params.swa_full, params.no_perf = False, True, True
        libllama.messages.clear()
        self._context = self._library.llama_init_from_model(self.model.handle, params)
        if not self._context:
            raise UnsupportedModelError(
                f"{self.model.path} cannot be served by llama.cpp: {' '.join(libllama.messages) or 'no reason was given'}"
            )
        weakref.finalize(self, _free, self._library, self._context, self.model).atexit = False
        self._memory = self._library.llama_get_memory(self._context)
        self._rows = Rows(self._most_rows)
        self._cell_count = self._library.llama_n_ctx_seq(self._context)
        byte_count = streams * self._cell_count * self.model.bytes_per_token
        return Reserved(streams, self._cell_count - _PADDED_ROWS, byte_count)

    def logits_of(self, tokens: list[int]) -> Floats32:
        """Return logits ``[tokens, vocabulary]`` of a short text, in as little memory as possible.
        The backend can do nothing else afterwards."""
        self.reserve(STREAM_MULTIPLE * self.model.bytes_per_token / MIB)
        return self.forward([Segment(tokens, 0, [1], len(tokens))])

    def copy_pages(self, copies: list[PageCopy]) -> None:
        for copy in copies:
            self._cut(copy.destination, 0)
            self._library.llama_memory_seq_cp(self._memory, copy.source - 1, copy.destination - 1, -1, -1)

    def erase_pages(self, pages: list[int]) -> None:
        """Overwrite streams with the embeddings of zeros. A cell that is freed keeps its numbers,
        only masked, and NaN times a weight of zero is still NaN. A token's embedding may be NaN as
        well, so zeros are used."""
        rows = Rows(STREAM_MULTIPLE, self._library.llama_model_n_embd(self.model.handle))
        for page in pages:
            self._cut(page, 0)
            for start in range(0, self._cell_count, STREAM_MULTIPLE):
                rows.clear()
                rows.add(page - 1, start, range(STREAM_MULTIPLE), asked_from=STREAM_MULTIPLE)
                self._compute(rows)
            self._cut(page, 0)

    def forward(self, segments: list[Segment]) -> Floats32:
        groups: defaultdict[int, list[Segment]] = defaultdict(list)
        for segment in segments:
            groups[max(len(segment.tokens), self._least_rows) if self._least_rows > 1 else 0].append(segment)
        logits: dict[int, Floats32] = {}
        for group in groups.values():
            counts = [segment.wanted for segment in group]
            rows = np.split(self._decode(group), np.cumsum(counts)[:-1])
            logits.update(zip(map(id, group), rows, strict=True))
        if len(groups) == 1:
            return rows[0] if len(rows) == 1 else np.concatenate(rows)
        return np.concatenate([logits[id(segment)] for segment in segments])

    def _cut(self, page: int, length: int) -> None:
        self._library.llama_memory_seq_rm(self._memory, page - 1, length, -1)

    def _decode(self, segments: list[Segment]) -> Floats32:
        """Return logits ``[rows, vocabulary]`` at the wanted rows of segments with equal row
        counts."""
        rows = self._rows
        rows.clear()
        wanted: list[int] = []
        """Indices among the rows whose logits are asked for."""
        asked_count = 0
        for segment in segments:
            (page,) = segment.pages
            self._cut(page, segment.start)  # drop rolled-back tokens and the last step's padding
            count = len(segment.tokens)
            row_count = max(count, self._least_rows)
            first_asked = min(count - segment.wanted, row_count - self._least_rows)
            padding = [segment.tokens[-1]] * (row_count - count)
            rows.add(page - 1, segment.start, [*segment.tokens, *padding], asked_from=first_asked)
            first = asked_count + count - segment.wanted - first_asked
            wanted.extend(range(first, first + segment.wanted))
            asked_count += row_count - first_asked
        self._compute(rows)
        logits = self._logits(asked_count)
        return logits.copy() if len(wanted) == asked_count else logits[wanted]  # the next step overwrites them

    def _logits(self, count: int) -> Floats32:
        size = self.model.vocabulary_size
        memory = (ctypes.c_float * (count * size)).from_address(self._library.llama_get_logits(self._context))
        return np.frombuffer(memory, np.float32).reshape(count, size)

    def _compute(self, rows: Rows) -> None:
        libllama.messages.clear()
        if status := self._library.llama_decode(self._context, rows.batch()):
            raise RuntimeError(f"llama.cpp could not compute ({status}): {' '.join(libllama.messages)}")


def _free(loaded: Any, context: int, _: GgufModel) -> None:
    """Free a context before its model is freed."""
    loaded.llama_free(context)
