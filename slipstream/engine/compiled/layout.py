"""A step in integers: its rows, and the parts of them that attend together."""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence

import numpy as np

from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.model import Segment


class Layout:
    """Segments laid out for compiled code; whoever has it keeps what `tell` has given places of."""

    def __init__(self, segments: list[Segment], page_size: int, most_rows: int) -> None:
        """Pages are whole blocks of sixteen tokens; a part has at most so many rows."""
        self._ids: list[int] = []
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._wanted: list[int] = []
        self._first_rows: list[int] = []
        self._row_counts: list[int] = []
        self._table_starts: list[int] = []
        self._tables: list[int] = []
        self._page_size = page_size
        self._longest = 0
        for segment in segments:
            self._add(segment, most_rows)
        self._integers = np.empty(0, dtype=np.int64)

    @property
    def wanted_count(self) -> int:
        """Rows whose logits are wanted."""
        return len(self._wanted)

    def tell(self, step: np.ndarray) -> None:
        """Write into a `records.STEP` how much there is, and where."""
        named = {
            "ids": self._ids,
            "positions": self._positions,
            "slots": self._slots,
            "wanted": self._wanted,
            "part_rows": self._first_rows,
            "part_counts": self._row_counts,
            "part_tables": self._table_starts,
        }
        integers = [0]
        starts = {}
        for name, values in named.items():
            starts[name] = len(integers)
            integers += values
        tables = len(integers)
        self._integers = np.array(integers + self._tables, dtype=np.int64)
        origin = self._integers.ctypes.data
        step["origin"] = origin
        for name, start in starts.items():
            step[name] = origin + 8 * start
        places = self._integers[starts["part_tables"] : tables]
        places += tables
        places *= 8
        places += origin
        step["row_count"], step["wanted_count"] = len(self._ids), len(self._wanted)
        step["part_count"] = len(self._first_rows)
        step["longest"] = -(-self._longest // LANES) * LANES

    def _add(self, segment: Segment, most_rows: int) -> None:
        count, start, pages, size = len(segment.tokens), segment.start, segment.pages, self._page_size
        end, first_row = start + count, len(self._ids)
        self._longest = max(self._longest, end)
        for row in range(0, count, most_rows):
            self._first_rows.append(first_row + row)
            self._row_counts.append(min(most_rows, count - row))
            self._table_starts.append(len(self._tables))
        self._tables += _blocks(pages, size // LANES, -(-end // LANES))
        self._ids += segment.tokens
        self._positions += range(start, end)
        self._slots += [pages[place // size] * size + place % size for place in range(start, end)]
        self._wanted += range(first_row + count - segment.wanted, first_row + count)


def _blocks(pages: TokenSequence[int], blocks_of_page: int, count: int) -> TokenSequence[int]:
    """The first ``count`` blocks of a sequence's pages."""
    if blocks_of_page == 1:
        return pages[:count]
    return [pages[block // blocks_of_page] * blocks_of_page + block % blocks_of_page for block in range(count)]
