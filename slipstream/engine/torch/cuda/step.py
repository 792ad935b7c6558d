"""The integers of one forward in their own memory on the device. Their size does not depend on how
many sequences share the forward.

::

    rows    | A: 6 new tokens           | B: 1 | C: 21 of a prompt | padding |
    pieces  | A: 6, keys 0 | A: 6, keys 1 | B: 1 | C: 16   | C: 5    |

A CUDA graph reads the same addresses each time it is replayed, so a step has room for as many rows
as it may ever have, as many pieces of attention, and the longest table of pages.

A piece is a block of queries and a chunk of the keys that they attend to. Without chunks, one
program would compute a long sequence alone. The keys' positions alone decide where chunks begin. So
a row's sums are divided in the same way, regardless of what is beside it or comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from slipstream.engine.model import Segment
from slipstream.engine.pages import PADDING_PAGE

QUERIES = 16
"""Most rows of one sequence that are attended for together."""

CHUNK = 512
"""Keys that a piece attends to."""

LONG_CHUNK = 2048
"""Keys of a piece from `LONG_AFTER` chunks on. Each row and chunk has partial results until they
are joined."""

LONG_AFTER = 16
"""Number of short chunks."""

PIECE = 6
"""Integers of a piece."""


def chunk_count(length: int) -> int:
    """Return the number of chunks that hold ``length`` keys."""
    short = -(-length // CHUNK)
    return short if short <= LONG_AFTER else LONG_AFTER - (-(length - LONG_AFTER * CHUNK) // LONG_CHUNK)


class Partial(NamedTuple):
    """Float32 results of each row, chunk and head: weighted values ``[rows, chunks, heads, size]``,
    the largest score, and the sum of the weights."""

    values: torch.Tensor
    tops: torch.Tensor
    weights: torch.Tensor


class Step:
    """The integers of a forward of ``row_count`` rows."""

    def __init__(self, row_count: int, page_size: int, most_pages: int, device: torch.device) -> None:
        """``most_pages``: pages of the longest sequence."""
        self.row_count = row_count
        self.most_chunks = chunk_count(most_pages * page_size)
        self._page_size = page_size
        most_pieces = row_count * self.most_chunks
        counts = [row_count, row_count, row_count, row_count, row_count, 1, PIECE * most_pieces, row_count * most_pages]
        self._pieces_start, self._tables_start = sum(counts[:-2]), sum(counts[:-1])
        self._partial: dict[tuple[int, int], Partial] = {}
        self._is_read = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._there = torch.zeros(sum(counts), dtype=torch.int64, device=device)
        self._here = torch.zeros(sum(counts), dtype=torch.int64, pin_memory=device.type == "cuda")
        there = torch.split(self._there, counts)
        self.input_ids, self.positions = there[0].unsqueeze(0), there[1].unsqueeze(0)
        """Token ids and positions, both ``[1, rows]``."""
        self.slots, self.logit_rows = there[2], there[3]
        """The slots of each row's keys and values, and the rows whose logits come first."""
        self.chunk_counts, self.piece_count = there[4], there[5]
        """Number of chunks attended to for each row, 0 for padding; and ``[1]``, the number of
        pieces."""
        self.pieces = there[6]
        """Pieces ``[pieces * PIECE]``: a block's first row, its row count, its first row's
        position, the start of its sequence's table, the chunk, and the block's chunk count."""
        self.tables = there[7]
        """Pages of the sequences, one table after another."""
        here = [part.numpy() for part in torch.split(self._here, counts)]
        self._input_ids, self._positions, self._slots, self._logit_rows, *here = here
        self._chunk_counts, self._piece_count, pieces, self._tables = here
        self._pieces = pieces.reshape(most_pieces, PIECE)

    def partial(self, heads: int, size: int) -> Partial:
        """Return memory for the partial results of rows with ``heads`` heads and values of
        ``size``, until they are joined."""
        known = (heads, size)
        if known not in self._partial:
            shape = self.row_count, self.most_chunks, heads
            self._partial[known] = Partial(
                *(torch.empty(part, device=self._there.device) for part in ((*shape, size), shape, shape))
            )
        return self._partial[known]

    def lay_out(self, segments: Sequence[Segment]) -> int:
        """Lay out segments of at most ``row_count`` rows. Returns the number of wanted logits,
        which come first. Waits until the device has read the last layout, after all earlier
        work."""
        if self._is_read is not None:
            self._is_read.synchronize()
        size = self._page_size
        row = wanted = table = 0
        pieces: list[tuple[int, ...]] = []
        for segment in segments:
            count, start = len(segment.tokens), segment.start
            positions = np.arange(start, segment.end)
            pages = np.array(segment.pages[: -(-segment.end // size)])
            self._input_ids[row : row + count] = segment.tokens
            self._positions[row : row + count] = positions
            self._slots[row : row + count] = pages[positions // size] * size + positions % size
            self._tables[table : table + len(pages)] = pages
            for first in range(0, count, QUERIES):
                together = min(QUERIES, count - first)
                chunks = chunk_count(start + first + together)
                self._chunk_counts[row + first : row + first + together] = chunks
                pieces += [(row + first, together, start + first, table, chunk, chunks) for chunk in range(chunks)]
            row, table, end = row + count, table + len(pages), wanted + segment.wanted
            self._logit_rows[wanted:end] = range(row - segment.wanted, row)
            wanted = end
        self._input_ids[row:] = 0
        self._positions[row:] = 0
        self._slots[row:] = PADDING_PAGE * size
        self._logit_rows[wanted:] = 0
        self._chunk_counts[row:] = 0
        self._piece_count[0] = len(pieces)
        self._pieces[: len(pieces)] = np.array(pieces, dtype=np.int64).reshape(-1, PIECE)
        for used in (
            slice(self._pieces_start + PIECE * len(pieces)),
            slice(self._tables_start, self._tables_start + table),
        ):
            self._there[used].copy_(self._here[used], non_blocking=True)
        if self._is_read is not None:
            self._is_read.record()
        return wanted


def split(segments: Sequence[Segment], row_count: int) -> list[list[Segment]]:
    """Split the segments into forwards of at most ``row_count`` rows, to be computed in order. A
    segment may continue in the next forward."""
    parts: list[list[Segment]] = [[]]
    room = row_count
    for segment in segments:
        count, done = len(segment.tokens), 0
        first_wanted = count - segment.wanted
        while done < count:
            if not room:
                parts.append([])
                room = row_count
            end = min(done + room, count)
            wanted = max(0, end - max(done, first_wanted))
            parts[-1].append(Segment(segment.tokens[done:end], segment.start + done, segment.pages, wanted))
            room -= end - done
            done = end
    return parts
