"""A model of Llama's family as the engine drives it: steps in, logits out, by one call of compiled code."""

from __future__ import annotations

import hashlib
import logging
import math
from typing import Any

import numpy as np
import torch

from slipstream.engine.compiled import kernel
from slipstream.engine.compiled.decoder import Decoder
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Choose, Reserved, Segment
from slipstream.engine.sequence import PageCopy

log = logging.getLogger(__name__)

MIB = 2**20


class CompiledBackend:
    """`slipstream.engine.model.Backend` of a `Decoder`. Pages are whole blocks of sixteen tokens."""

    settled_after = 1
    warmed_lengths: tuple[int, ...] = ()
    row_multiple = 1

    def __init__(self, model: Decoder, *, page_size: int, runs_on: bool, threads: int) -> None:
        """``page_size`` is a multiple of `kernel.LANES`; ``runs_on`` where steps may follow one another without being asked for."""
        self.model = model
        self.runs_on = runs_on
        self.mark = hashlib.sha256(f"compiled {kernel.PAIRED_BY if model.paired else 'float32'}".encode()).hexdigest()[
            :4
        ]
        self._threads = threads
        self._blocks_of_page = page_size // kernel.LANES
        self._page_size = page_size
        self._memory = torch.empty(0)
        self._step = self._describe()
        self._work = _Workspace(model, threads)

    def reserve(self, memory_mib: float) -> Reserved:
        model = self.model
        page_count = math.floor(memory_mib * MIB / (model.bytes_per_token * self._page_size))
        if page_count < 1:
            least = model.bytes_per_token * self._page_size / MIB
            raise UnsupportedModelError(f"kv_memory_mib of {memory_mib:g} holds no page; one takes {least:.2g} MiB")
        numbers = self._page_size * model.kv_head_count * model.head_size
        dtype = torch.bfloat16 if model.paired else torch.float32
        self._memory = torch.zeros(2 * model.layer_count, page_count + 1, numbers, dtype=dtype)
        layers = model.layers
        layers["keys"] = [keys.data_ptr() for keys in self._memory[: model.layer_count]]
        layers["values"] = [values.data_ptr() for values in self._memory[model.layer_count :]]
        return Reserved(page_count, self._page_size, page_count * self._page_size * model.bytes_per_token)

    def copy_pages(self, copies: list[PageCopy]) -> None:
        for copy in copies:
            self._memory[:, copy.destination] = self._memory[:, copy.source]

    def erase_pages(self, pages: list[int]) -> None:
        self._memory[:, pages] = 0

    def forward(self, segments: list[Segment]) -> torch.Tensor:
        step, model = self._step, self.model
        wanted_count = sum(segment.wanted for segment in segments)
        logits = torch.empty(wanted_count, model.vocabulary_columns)
        integers = self._lay_out(segments, wanted_count)
        step["logits"] = logits.data_ptr()
        self._work.make_room(step)
        kernel.forward(step, self._threads)
        del integers  # it had to be there until now
        return (
            logits
            if model.vocabulary_columns == model.vocabulary_size
            else logits[:, : model.vocabulary_size].contiguous()
        )

    def run_on(self, segments: list[Segment], choose: Choose) -> None:
        while (tokens := choose(self.forward(segments))) is not None:
            segments = [
                Segment([token], segment.start + 1, segment.pages, 1)
                for segment, token in zip(segments, tokens, strict=True)
            ]

    def _describe(self) -> np.ndarray:
        """What stays the same in all steps."""
        model = self.model
        step = np.zeros((), kernel.STEP)
        for name in (
            "hidden_size",
            "head_count",
            "kv_head_count",
            "head_size",
            "feed_forward",
            "vocabulary_columns",
            "layer_count",
            "paired",
            "embedding",
            "final_norm",
            "head",
            "epsilon",
            "rotation_scale",
            "attention_scale",
        ):
            step[name] = getattr(model, name)
        step["layers"] = model.layers.ctypes.data
        step["frequencies"] = model.frequencies.data_ptr()
        return step

    def _lay_out(self, segments: list[Segment], wanted_count: int) -> Any:
        """Write a step's rows and parts; returns what they lie in."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        wanted: list[int] = []
        parts: list[tuple[int, int, int]] = []
        tables: list[int] = []
        longest = 0
        size, most = self._page_size, max(1, kernel.TILE_ROWS // (self.model.head_count // self.model.kv_head_count))
        for segment in segments:
            count, start, pages = len(segment.tokens), segment.start, segment.pages
            end, row = start + count, len(ids)
            longest = max(longest, end)
            parts += [(row + at, min(most, count - at), len(tables)) for at in range(0, count, most)]
            tables += self._blocks(pages, end)
            ids += segment.tokens
            positions += range(start, end)
            slots += [pages[at // size] * size + at % size for at in range(start, end)]
            wanted += range(row + count - segment.wanted, row + count)
        rows, part_count = len(ids), len(parts)
        firsts, counts, places = zip(*parts, strict=True)
        integers = np.array([0, *ids, *positions, *slots, *wanted, *firsts, *counts, *places, *tables], dtype=np.int64)
        step, origin = self._step, integers.ctypes.data
        at = 1
        step["origin"] = origin
        for name, length in (
            ("ids", rows),
            ("positions", rows),
            ("slots", rows),
            ("wanted", wanted_count),
            ("part_rows", part_count),
            ("part_counts", part_count),
            ("part_tables", part_count),
        ):
            step[name] = origin + 8 * at
            at += length
        integers[at - part_count : at] = origin + 8 * (at + integers[at - part_count : at])
        step["row_count"], step["wanted_count"], step["part_count"] = rows, wanted_count, part_count
        step["longest"] = -(-longest // kernel.LANES) * kernel.LANES
        return integers

    def _blocks(self, pages: Any, end: int) -> list[int]:
        """A sequence's blocks of sixteen tokens, as many as hold ``end`` tokens."""
        count = -(-end // kernel.LANES)
        if self._blocks_of_page == 1:
            return [*pages[:count]]
        return [
            pages[at // self._blocks_of_page] * self._blocks_of_page + at % self._blocks_of_page for at in range(count)
        ]


class _Workspace:
    """Memory that a forward computes in; it grows with the largest."""

    def __init__(self, model: Decoder, threads: int) -> None:
        self._model = model
        self._threads = threads
        self._rows = self._longest = 0
        self._kept: list[torch.Tensor] = []

    def make_room(self, step: np.ndarray) -> None:
        """As much as ``step`` needs, and tell it where."""
        rows, longest = int(step["row_count"]), int(step["longest"])
        if rows > self._rows or longest > self._longest:
            self._rows, self._longest = max(rows, self._rows, 64), max(longest, 2 * self._longest, 1024)
            self._reserve(step)

    def _reserve(self, step: np.ndarray) -> None:
        model, rows = self._model, self._rows
        attended = model.head_count * model.head_size
        sizes = {
            "residual": rows * model.hidden_size,
            "inputs": rows * max(model.hidden_size, attended),
            "projected": rows * (attended + 2 * model.kv_head_count * model.head_size),
            "queries": rows * attended,
            "gated": rows * model.feed_forward,
            "rotations": rows * model.head_size,
        }
        scores = kernel.TILE_ROWS * (2 * self._longest + model.head_size + kernel.LANES)
        scratch = -(-max(scores, rows * kernel.TILE_COLUMNS, model.head_size) // 1024) * 1024
        sizes["scratch"] = scratch * self._threads
        self._kept = [torch.zeros(size) for size in sizes.values()]
        for name, memory in zip(sizes, self._kept, strict=True):
            step[name] = memory.data_ptr()
        step["scratch_bytes"] = 4 * scratch
