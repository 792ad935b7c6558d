"""A step in integers: its rows, and the parts of them that attend together."""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence

import numpy as np

from slipstream.engine.compiled.lanes import LANES
from slipstream.engine.model import Segment


class _Parts:
    """Parts of attention: rows of one sequence, as many as see their keys together."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self.first_rows: list[int] = []
        self.row_counts: list[int] = []
        self.table_starts: list[int] = []
        self.places: list[int] = []
        """Place of each part's first row among the rows of all parts."""
        self.row_count = 0

    def add(self, rows: range, table_start: int) -> None:
        """A sequence's rows."""
        for first in range(rows.start, rows.stop, self._most_rows):
            count = min(self._most_rows, rows.stop - first)
            self.first_rows.append(first)
            self.row_counts.append(count)
            self.table_starts.append(table_start)
            self.places.append(self.row_count)
            self.row_count += count


class Layout:
    """Segments laid out for compiled code. It owns the arrays whose addresses `tell` writes."""

    def __init__(self, segments: list[Segment], page_size: int, most_rows: int) -> None:
        """Pages are whole blocks of sixteen tokens; a part has at most so many rows."""
        self._ids: list[int] = []
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._parts, self._wanted_parts = _Parts(most_rows), _Parts(most_rows)
        self._tables: list[int] = []
        self._page_size = page_size
        self._longest = 0
        for segment in segments:
            self._add(segment)
        self._integers = np.empty(0, dtype=np.int64)

    @property
    def wanted_count(self) -> int:
        """Rows whose logits are wanted."""
        return self._wanted_parts.row_count

    def tell(self, step: np.ndarray) -> None:
        """Write into a `records.STEP` how much there is, and where."""
        named = {
            "ids": self._ids,
            "positions": self._positions,
            "slots": self._slots,
            "part_rows": self._parts.first_rows,
            "part_counts": self._parts.row_counts,
            "wanted_part_rows": self._wanted_parts.first_rows,
            "wanted_part_counts": self._wanted_parts.row_counts,
            "wanted_part_places": self._wanted_parts.places,
            "part_tables": self._parts.table_starts,
            "wanted_part_tables": self._wanted_parts.table_starts,
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
        step["row_count"], step["wanted_count"] = len(self._ids), self.wanted_count
        step["part_count"], step["wanted_part_count"] = (
            len(each.first_rows) for each in (self._parts, self._wanted_parts)
        )
        step["longest"] = -(-self._longest // LANES) * LANES

    def _add(self, segment: Segment) -> None:
        count, start, pages, size = len(segment.tokens), segment.start, segment.pages, self._page_size
        end, first_row, table_start = start + count, len(self._ids), len(self._tables)
        self._longest = max(self._longest, end)
        self._parts.add(range(first_row, first_row + count), table_start)
        self._wanted_parts.add(range(first_row + count - segment.wanted, first_row + count), table_start)
        self._tables += _blocks(pages, size // LANES, -(-end // LANES))
        self._ids += segment.tokens
        self._positions += range(start, end)
        self._slots += [pages[place // size] * size + place % size for place in range(start, end)]


def _blocks(pages: TokenSequence[int], blocks_of_page: int, count: int) -> TokenSequence[int]:
    """The first ``count`` blocks of a sequence's pages."""
    if blocks_of_page == 1:
        return pages[:count]
    return [pages[block // blocks_of_page] * blocks_of_page + block % blocks_of_page for block in range(count)]
