"""Markdown as every generated page writes it: tables, cells, wrapped paragraphs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100
"""Columns of prose."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """Render a table; columns whose index is in ``numeric`` are aligned to the right."""
    to_the_right = set(numeric)
    rule = ["---:" if index in to_the_right else "---" for index in range(len(columns))]
    lines = [columns, rule, *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def cell(text: str) -> str:
    """Return text that stays within one table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def paragraph(text: str) -> str:
    """Wrap one paragraph."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def generated(by: str) -> str:
    """Return the line that says which source a page is made from."""
    return f"<!-- Made by tools/make_reference.py from {by}. -->\n\n"
