"""An answer as it comes, each token marked by how it came about: what
``slipstream chat --show-rounds`` prints."""

from __future__ import annotations

import re
from collections import Counter

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from slipstream.client import Delta

ORIGINS = {
    "draft": ("accepted draft", Style(color="green", underline=True)),
    "ngram": ("n-gram", Style(color="cyan", underline=True, bold=True)),
    "heads": ("heads", Style(color="blue", underline=True, reverse=True)),
    "recovered": ("recovered from rejection", Style(color="magenta", reverse=True)),
    "bonus": ("bonus", Style(color="yellow", bold=True)),
    "plain": ("plain", Style()),
}
"""Name and look of each origin. No two differ in their colours alone."""
_SHORT = {"ngram": "n-gram"}
_NOT_SAID = "the server does not say how its tokens came about: it may be older than this command"


class RoundsShown:
    """Prints one answer. Where ``console`` is no terminal its text is as it always is, and
    ``aside`` gets the counts."""

    def __init__(self, console: Console, aside: Console) -> None:
        self._console = console
        self._aside = aside
        self._counts: Counter[str] = Counter()
        self._token_count = 0

    def say(self, delta: Delta) -> None:
        """Print the text of a delta, and count its tokens."""
        self._token_count += len(delta.token_ids)
        self._counts.update(origin for origin in delta.token_origins if origin in ORIGINS)
        if self._console.is_terminal:
            self._console.print(Segments(_marked(delta)), soft_wrap=True)
        else:
            say(self._console, delta.text)

    def close(self) -> None:
        """The answer has ended: print how many tokens there were of each kind, if there were
        any."""
        if not self._token_count:
            return
        if self._console.is_terminal:
            self._console.print(counts_line(self._counts), soft_wrap=True)
        else:
            self._aside.print(counts_line(self._counts).plain, markup=False, highlight=False, soft_wrap=True)


def say(console: Console, text: str) -> None:
    """Print text as it is: what a model writes is neither markup nor wrapped, and its tabs and
    emoji codes are its own."""
    console.print(Segments([Segment(text)]), soft_wrap=True)


def legend() -> Text:
    """Return the meaning of the marks."""
    marked = [Text(name, style) for name, style in ORIGINS.values()]
    return Text().append("tokens: ", "dim").append_text(Text("  ").join(marked))


def counts_line(counts: Counter[str]) -> Text:
    """One line: how many tokens there were of each origin."""
    if not counts:
        return Text(f"[{_NOT_SAID}]", Style(dim=True))
    marked = [
        Text(f"{counts[origin]} ").append(_SHORT.get(origin, origin), style) for origin, (_, style) in ORIGINS.items()
    ]
    return Text("[").append_text(Text(", ").join(marked)).append("]")


def _marked(delta: Delta) -> list[Segment]:
    """A line's end stays unmarked: some terminals would mark the rest of the line."""
    segments = []
    for text, origin in delta.pieces():
        style = ORIGINS[origin][1] if origin in ORIGINS else None
        for part in re.split(r"([\r\n]+)", text):
            segments.append(Segment(part, None if part.startswith(("\r", "\n")) else style))
    return segments
