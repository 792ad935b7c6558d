"""One forward's integers in memory of its own on the device, of one size however many sequences share the forward.

::

    rows    | A: 6 new tokens | B: 1 | C: 21 of a prompt         | padding     |
    blocks  | A: 6            | B: 1 | C: 16         | C: 5      | empty ...   |

A CUDA graph reads the same addresses each time it is replayed, so a step has room for as many rows as it may ever have, as
many blocks of queries (a row of each of so many sequences), and the longest table of pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slipstream.engine.model import Segment
from slipstream.engine.pages import PADDING_PAGE

QUERIES = 16
"""Rows of one sequence that are attended for together, at most."""


class Step:
    """Integers of a forward of ``row_count`` rows."""

    def __init__(self, row_count: int, page_size: int, most_pages: int, device: torch.device) -> None:
        """``most_pages``: of the longest sequence."""
        self.row_count = row_count
        self.block_count = row_count
        self._page_size = page_size
        counts = [row_count, row_count, row_count, row_count, 4 * row_count, row_count * most_pages]
        self._fixed_count = sum(counts[:-1])
        self._there = torch.zeros(sum(counts), dtype=torch.int64, device=device)
        self._here = torch.zeros(sum(counts), dtype=torch.int64, pin_memory=device.type == "cuda")
        there = torch.split(self._there, counts)
        self.input_ids, self.positions = there[0].unsqueeze(0), there[1].unsqueeze(0)
        """Both ``[1, rows]``."""
        self.slots, self.logit_rows = there[2], there[3]
        """Where each row's keys and values go, and the rows whose logits come first."""
        self.blocks = there[4]
        """``[rows * 4]``: of each block its first row, its rows or 0, its first row's position, where its table begins."""
        self.tables = there[5]
        """Pages of the sequences, one table after another."""
        here = [part.numpy() for part in torch.split(self._here, counts)]
        self._input_ids, self._positions, self._slots, self._logit_rows, blocks, self._tables = here
        self._blocks = blocks.reshape(row_count, 4)

    def take(self, segments: Sequence[Segment]) -> int:
        """Lay out segments of ``row_count`` rows at most; returns how many logits are wanted, which come first."""
        size = self._page_size
        row = block = wanted = table = 0
        for segment in segments:
            count, start = len(segment.tokens), segment.start
            positions = np.arange(start, segment.end)
            pages = np.array(segment.pages[: -(-segment.end // size)])
            self._input_ids[row : row + count] = segment.tokens
            self._positions[row : row + count] = positions
            self._slots[row : row + count] = pages[positions // size] * size + positions % size
            self._tables[table : table + len(pages)] = pages
            for first in range(0, count, QUERIES):
                self._blocks[block] = row + first, min(QUERIES, count - first), start + first, table
                block += 1
            row, table, end = row + count, table + len(pages), wanted + segment.wanted
            self._logit_rows[wanted:end] = range(row - segment.wanted, row)
            wanted = end
        self._input_ids[row:] = 0
        self._positions[row:] = 0
        self._slots[row:] = PADDING_PAGE * size
        self._logit_rows[wanted:] = 0
        self._blocks[block:, 1] = 0
        used = self._fixed_count + table
        self._there[:used].copy_(self._here[:used], non_blocking=True)
        return wanted


def split(segments: Sequence[Segment], row_count: int) -> list[list[Segment]]:
    """The segments in forwards of ``row_count`` rows at most, to be computed in order: a segment may go on in the next."""
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
