"""The index of decisions: number, title and status of each page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.reference.markdown import cell, generated, table

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"

_HEAD = """# Decisions

Each page holds one decision: what was decided, why, and what else was tried. A page keeps the words
and figures of its date. What holds today is in [the architecture](../architecture.md).

"""
_TITLE = re.compile(r"# (\d+)\. (.+)")
_STATUS = re.compile(r"(\d{4}-\d\d-\d\d), (.+)", re.DOTALL)


def page() -> str:
    """Return the page. ValueError if a decision lacks its number, title or status."""
    return generated("the pages beside it") + _HEAD + table(["number", "title", "date", "status"], _rows())


def _rows() -> Iterator[list[str]]:
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        heading, status, *_ = path.read_text().split("\n\n")
        title = _TITLE.fullmatch(" ".join(heading.split()))
        said = _STATUS.fullmatch(" ".join(status.split()))
        if title is None or said is None or int(title[1]) != int(path.name[:4]):
            raise ValueError(f"{path.name} must begin with '# NUMBER. TITLE', an empty line and 'DATE, STATUS'")
        yield [title[1], f"[{cell(title[2])}]({path.name})", said[1], cell(said[2])]
