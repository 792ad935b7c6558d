"""A session's last turns as a waterfall in the terminal: what ``slipstream trace`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

from slipstream.cli.remarks import headline, left_out_of, notes_of, remarks_of
from slipstream.cli.timeline import Kind, Part, parts_of, scale_of, sums_of
from slipstream.cli.trace_rows import Row, rows_of
from slipstream.cli.words import milliseconds
from slipstream.rpc.wire import seconds
from slipstream.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class Ink:
    """Look of a kind of part. No two look alike without their colours."""

    mark: str
    letter: str
    """Letter for a terminal whose encoding has no blocks."""
    colour: str


INKS = {
    Kind.PROPOSE: Ink("▒", "d", "green"),
    Kind.QUEUE: Ink("░", "q", "red"),
    Kind.FORWARD: Ink("█", "#", "blue"),
    Kind.NETWORK: Ink("─", "-", "magenta"),
    Kind.IDLE: Ink("·", ".", "white"),
    Kind.UNANSWERED: Ink("x", "x", "bright_red"),
    Kind.REST: Ink("▪", "+", "yellow"),
}
_LEAST_AXIS, _LEAST_PARTS, _MOST_PARTS = 16, 12, 40
_MORE_FOR_BARS = 16
"""Columns that the bars get beyond the least, before the last columns of numbers are shown."""
_ALWAYS_SHOWN = 2
"""Number of columns that are always shown."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    width: int
    value: Callable[[Row], str]
    meaning: str = ""


_BEFORE = (
    _Column("#", 9, lambda row: row.number),
    _Column("start", 8, lambda row: f"{row.start * 1e3:.1f}"),
)
_TIME = _Column("ms", 7, lambda row: f"{row.length * 1e3:.1f}")
_AFTER = (
    _Column("d/a/c", 11, lambda row: row.tokens, "tokens drafted, accepted, committed"),
    _Column("by", 6, lambda row: row.proposer, "who proposed"),
    _Column("margin", 7, lambda row: row.margin, "the least lead of a chosen token over the next best"),
)
"""Columns of numbers, as many as there is room for."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Division of a terminal's width."""

    axis_width: int
    parts_width: int
    after: Sequence[_Column]

    @classmethod
    def of(cls, width: int) -> _Layout:
        left = width - sum(column.width + 1 for column in (*_BEFORE, _TIME)) - _LEAST_AXIS - 1 - _LEAST_PARTS
        after: list[_Column] = []
        for place, column in enumerate(_AFTER):
            if left < column.width + 1 + (_MORE_FOR_BARS if place >= _ALWAYS_SHOWN else 0):
                break
            left -= column.width + 1
            after.append(column)
        wider = max(0, min(_MOST_PARTS - _LEAST_PARTS, left // 2))
        return cls(_LEAST_AXIS + max(0, left - wider), _LEAST_PARTS + wider, after)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """One turn: a summary, and a line a round or for several that need no look of their own."""

    session_id: str
    turn: trace_pb2.TurnTrace
    every_round: bool = False
    """Give each round a line."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from summary(self.session_id, self.turn)
        if self.turn.rounds:
            yield from _legend(self.turn.rounds, options.max_width, options.ascii_only)
            rows = rows_of(self.turn.rounds, every_round=self.every_round)
            yield from (Text(note, "dim") for note in _about_folded(rows))
            yield Text()
            yield from _Drawing(self.turn, rows, _Layout.of(options.max_width), options.ascii_only).lines()


class Footnotes:
    """Meaning of the columns, and the names of those that have no room."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        shown = _Layout.of(options.max_width).after
        yield Text("; ".join(f"{column.name}: {column.meaning}" for column in shown), "dim")
        if missing := [column.name for column in _AFTER[len(shown) :]]:
            yield Text(f"a wider terminal, or --html, shows: {', '.join(missing)}", "dim")


def summary(session_id: str, turn: trace_pb2.TurnTrace) -> Iterator[Text]:
    """Yield the lines about a turn that come before its rounds."""
    yield Text(headline(session_id, turn), "bold")
    if turn.trace_id:
        yield Text("OpenTelemetry trace ").append(turn.trace_id, "cyan").append(", to be searched for in Jaeger")
    for remark in remarks_of(turn.rounds):
        yield Text(remark, "yellow")
    if left_out := left_out_of(turn):
        yield Text(left_out, "dim")


def _legend(rounds: Sequence[trace_pb2.RoundTrace], width: int, ascii_only: bool) -> Iterator[Text]:
    """Yield the meaning of the marks, and the sum of each kind, in as many lines as it takes."""
    sums = sums_of(rounds)
    whole = sum(sums.values())
    line = Text()
    for kind, length in sums.items():
        if not length:
            continue
        mark = INKS[kind].letter if ascii_only else INKS[kind].mark
        entry = Text().append(mark * 2, INKS[kind].colour)
        entry.append(f" {kind.value} {milliseconds(length)} {length / whole:.0%}  ")
        if len(line) + len(entry) - 2 > width:
            yield line
            line = Text()
        line.append_text(entry)
    yield line


def _about_folded(rows: Sequence[Row]) -> Iterator[str]:
    if folded := next((row for row in rows if row.folded), None):
        yield (
            f"the row {folded.number} stands for {len(folded.rounds)} rounds and shows their means; --every-round shows each"
        )


class _Drawing:
    """A turn's lines, each as wide as the terminal."""

    def __init__(self, turn: trace_pb2.TurnTrace, rows: Sequence[Row], layout: _Layout, ascii_only: bool) -> None:
        self._rows = rows
        self._layout = layout
        self._ascii = ascii_only
        self._whole = max(seconds(turn.total), *(part.end for trace in turn.rounds for part in parts_of(trace)), 1e-9)
        self._scale = scale_of(turn.rounds)

    def lines(self) -> Iterator[Text]:
        """A heading, then a line a round, and what went wrong in it below."""
        layout = self._layout
        when = f"when, of {milliseconds(self._whole)}"
        heading = f"{when:<{layout.axis_width}} {_TIME.name:>{_TIME.width}} {'its parts':<{layout.parts_width}} "
        heading = self._cells(_BEFORE, lambda column: column.name) + heading
        heading += self._cells(layout.after, lambda column: column.name)
        yield Text(heading.rstrip(), "bold", no_wrap=True)
        for row in self._rows:
            yield self._line(row)
            for note in [] if row.folded else notes_of(row.rounds[0]):
                yield Text(f"     {note}", "bold red" if row.bad else "red")

    def _cells(self, columns: Sequence[_Column], show: Callable[[_Column], str]) -> str:
        return "".join(f"{show(column):>{column.width}} " for column in columns)

    def _line(self, row: Row) -> Text:
        line = Text(self._cells(_BEFORE, lambda column: column.value(row)), no_wrap=True)
        line.append_text(self._bar(row.parts(), 0.0, self._whole, self._layout.axis_width))
        line.append(f" {_TIME.value(row):>{_TIME.width}} ", "bold red" if row.bad else "")
        bar = self._bar(row.own_parts(), row.start, row.start + self._scale, self._layout.parts_width)
        if row.length > self._scale:  # it goes on
            bar.right_crop(1)
            bar.append(">")
        line.append_text(bar)
        return line.append(f" {self._cells(self._layout.after, lambda column: column.value(row))}".rstrip())

    def _bar(self, parts: Sequence[Part], start: float, end: float, width: int) -> Text:
        text = Text()
        for kind in kinds_in_cells(parts, start, end, width):
            if kind is None:
                text.append(" ")
            else:
                text.append(INKS[kind].letter if self._ascii else INKS[kind].mark, INKS[kind].colour)
        return text


def kinds_in_cells(parts: Sequence[Part], start: float, end: float, width: int) -> list[Kind | None]:
    """Return what to draw of the time from ``start`` to ``end`` in ``width`` cells.

    Each cell has the kind with most of its time, or None if more than half of it is empty. A round
    too short for that has one cell all the same.
    """
    cells: list[Kind | None] = [None] * width
    length = (end - start) / width
    for place in range(width):
        left, right = start + place * length, start + (place + 1) * length
        overlaps = dict.fromkeys(Kind, 0.0)
        for part in parts:
            overlaps[part.kind] += max(0.0, min(part.end, right) - max(part.start, left))
        if sum(overlaps.values()) >= length / 2:
            cells[place] = max(overlaps, key=lambda kind: overlaps[kind])
    if parts and all(kind in (None, Kind.IDLE) for kind in cells):
        longest = max(parts, key=lambda part: (part.kind is not Kind.IDLE, part.length))
        middle = (longest.start + longest.end) / 2
        cells[min(width - 1, max(0, int((middle - start) / length)))] = longest.kind
    return cells
