"""Bars and sparklines out of characters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """Characters to draw with."""

    levels: str
    """From nothing to a full cell, upwards."""
    parts: str
    """From nothing to a full cell, to the right."""
    rest: str
    """A bar's empty cell."""
    half: str
    """A full cell of another kind."""


BLOCKS = Marks(" ▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉█", " ", "░")
LETTERS = Marks(" .:-=+*#", " #", ".", "=")
"""Characters for a terminal whose encoding has no blocks."""


def bar(share: float, width: int, marks: Marks = BLOCKS) -> str:
    """``width`` cells, a share of them filled from the left; what is not quite nothing shows."""
    steps = len(marks.parts) - 1
    filled = round(min(1.0, max(0.0, share)) * width * steps)
    if share > 0:
        filled = max(1, filled)
    whole, part = divmod(filled, steps)
    cells = marks.parts[-1] * whole + (marks.parts[part] if part else "")
    return cells + marks.rest * (width - len(cells))


def level(share: float, marks: Marks = BLOCKS) -> str:
    """One cell, a share of it filled from below; what is not quite nothing shows."""
    top = len(marks.levels) - 1
    filled = round(min(1.0, max(0.0, share)) * top)
    return marks.levels[max(1, filled) if share > 0 else 0]


def sparkline(history: Sequence[tuple[float, float]], seconds: float, width: int, marks: Marks = BLOCKS) -> str:
    """Values by their age in seconds, the youngest on the right; each cell is the greatest of its
    time, the tallest full."""
    cells: list[float | None] = [None] * width
    for age, value in history:
        place = width - 1 - int(age / seconds * width)
        if 0 <= place < width:
            cells[place] = max(value, cells[place] or 0.0)
    for place in range(1, width):  # looks may be further apart than cells
        if cells[place] is None:
            cells[place] = cells[place - 1]
    top = max((cell for cell in cells if cell is not None), default=0.0)
    return "".join(" " if cell is None else level(cell / top if top else 0.0, marks) for cell in cells)
