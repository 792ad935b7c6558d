"""The screen of ``slipstream top``, for any width from 80 columns on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from slipstream.cli.bars import BLOCKS, LETTERS, Marks, bar, level, sparkline
from slipstream.cli.counts import OUTCOME, PROPOSER, Counts
from slipstream.cli.figures import HISTORY_SECONDS, Figures, Peer, Process, Turn
from slipstream.cli.words import OUTCOMES, PROPOSERS
from slipstream.v1 import status_pb2

_LABEL_WIDTH = 15
_POSITION_WIDTH = 4
_TIMES = {
    "verify": ("verify", "blue"),
    "verify_queue": ("verify queue", "red"),
    "verify_network": ("network", "magenta"),
    "draft_wait": ("draft wait", "green"),
    "rest": ("the rest", "white"),
}
_LEAST_PAGE_CELLS = 8
_WIDE = 96
_BAD_OUTCOMES = ("cancelled", "failed")
_SPACIOUS_HEIGHT = 34
"""Rows from which on there is room for what is not needed: bars of what is told in numbers too, and
empty lines."""


@dataclass(frozen=True, slots=True)
class Screen:
    """One screen."""

    address: str
    figures: Figures
    trouble: str = ""
    """Reason that there are no newer figures; empty if there are."""
    most_turns: int | None = None
    """Most turns to show; None: as many as the terminal has room for."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        marks = LETTERS if options.ascii_only else BLOCKS
        spacious = options.max_height >= _SPACIOUS_HEIGHT
        used = 0
        for block in self._blocks(options.max_width, marks, spacious):
            lines = [*block, Text()] if spacious else block
            yield from lines
            used += sum(len(console.render_lines(line, options.update(height=None))) for line in lines)
        most = max(1, options.max_height - used - 2) if self.most_turns is None else self.most_turns
        yield from _turns(self.figures.turns, most)

    def _blocks(self, width: int, marks: Marks, spacious: bool) -> Iterator[Sequence[RenderableType]]:
        figures = self.figures
        head: list[RenderableType] = [_header(self.address, figures, width)]
        if self.trouble:
            head.append(Text(self.trouble, "bold red"))
        if len(figures.processes) > 1:
            head.append(_processes(figures.processes))
        yield head
        positions = list(_positions(figures, width, marks))
        yield [_tokens(figures, width, marks), _acceptance(figures), *(positions if spacious else positions[:2])]
        yield list(_rounds(figures.rates))
        if times := list(_times(figures, width, marks)):
            yield times
        yield [_peers(figures.peers, width, marks)]


def _label(name: str) -> Text:
    return Text(overflow="fold").append(f"{name:<{_LABEL_WIDTH}}", "bold")


def _header(address: str, figures: Figures, width: int) -> Text:
    """One line, or two where it is narrow."""
    count = len(figures.processes)
    uptime = duration(max((process.uptime for process in figures.processes), default=0.0))
    first = f"  {count} process{'es' if count != 1 else ''}  up {uptime}"
    numbers = {
        "sessions": "session_count",
        "running": "running_turn_count",
        "places": "turn_place_count",
        "waiting": "waiting_turn_count",
        "refused": "refused_count",
        "not drafting": "not_drafting_count",
    }
    second = "  ".join(f"{name} {figures.sum_of(field)}" for name, field in numbers.items())
    break_or_space = "  " if len(address) + len(first) + 2 + len(second) <= width else "\n"
    return Text().append(address, "bold cyan").append(f"{first}{break_or_space}{second}")


def _processes(processes: Sequence[Process]) -> Table:
    table = _table("process", "up", "sessions", "running", "waiting", "not drafting", "tokens/s")
    for process in processes:
        status = process.status
        table.add_row(
            str(status.number),
            duration(process.uptime),
            str(status.session_count),
            str(status.running_turn_count),
            str(status.waiting_message_count),
            str(status.not_drafting_count),
            number(process.rates["generated_token_count"]),
        )
    return table


def _tokens(figures: Figures, width: int, marks: Marks) -> Text:
    now = number(figures.rates["generated_token_count"]) if figures.rates.sums else "-"
    line = _label("tokens/s").append(f"{now:>6}", "bold green")
    if not figures.history:
        return line
    most = number(max(rate for _, rate in figures.history))
    cells = max(10, min(60, width - _LABEL_WIDTH - 40))
    line.append("  ").append(sparkline(figures.history, HISTORY_SECONDS, cells, marks), "green")
    return line.append(f"  last minute, at most {most}", "dim")


def _acceptance(figures: Figures) -> Text:
    line = _label("acceptance").append(f"{percent(figures.rates.acceptance):>6}", "bold")
    line.append(f" now, {percent(figures.total.acceptance)} in all").append("    mean length ", "bold")
    return line.append(f"{_length(figures.rates)} now, {_length(figures.total)} in all")


def _length(counts: Counts) -> str:
    length = counts.mean_acceptance_length
    return "-" if length is None else f"{length:.2f}"


def _positions(figures: Figures, width: int, marks: Marks) -> Iterator[Text]:
    """By place in the proposal: of the last interval, or if nothing was proposed in it, since the
    start."""
    recent = figures.rates.acceptance is not None
    shares = (figures.rates if recent else figures.total).position_acceptances
    shown = shares[: (width - _LABEL_WIDTH) // _POSITION_WIDTH]
    if not shown:
        return
    places = "".join(f"{place:>{_POSITION_WIDTH}}" for place in range(1, len(shown) + 1))
    percents = "".join(f"{'-' if share is None else f'{share * 100:.0f}':>{_POSITION_WIDTH}}" for share in shown)
    yield _label("by position").append(places, "dim")
    yield _label("  % now" if recent else "  % in all").append(percents)
    yield _label("").append("".join(f"  {level(share or 0.0, marks) * 2}" for share in shown), "green")


def _rounds(rates: Counts) -> Iterator[Text]:
    """Dashes at the first look, which has nothing to compare with."""

    def told(rate: float) -> str:
        return number(rate) if rates.sums else "-"

    line = _label("rounds/s").append(f"{told(rates.round_count):>6}", "bold")
    for name, rate in _named(OUTCOMES, rates.rounds_by(OUTCOME)):
        if rate or name not in _BAD_OUTCOMES:
            line.append(f"  {name} {told(rate)}", "bold red" if name in _BAD_OUTCOMES else "")
    yield line
    shares = (f"{name} {told(rate)}" for name, rate in _named(PROPOSERS, rates.rounds_by(PROPOSER)))
    yield _label("  proposed by").append("  ".join(shares))


def _named(names: Mapping[str, str], rates: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The known ones first, whether there were any or not."""
    for key in dict.fromkeys((*names, *rates)):
        yield names.get(key, key), rates.get(key, 0.0)


def _times(figures: Figures, width: int, marks: Marks) -> Iterator[Text]:
    """Yield the times of the last interval's rounds, or of all rounds if none ended in it."""
    recent = figures.rates.timed_round_count > 0
    counts = figures.rates if recent else figures.total
    parts = counts.seconds_a_round
    whole = sum(parts.values())
    if not whole:
        return
    yield (
        _label("a round takes")
        .append(f"{whole * 1e3:7.1f} ms", "bold")
        .append("  now" if recent else "  in all", "dim")
    )
    for key, (name, colour) in _TIMES.items():
        line = _time(name, parts[key], whole)
        yield line.append(bar(parts[key] / whole, max(10, width - len(line) - 1), marks), colour)
    line = _time("verifier idle", counts.idle_a_round or 0.0, whole)
    yield line.append("draft wait, network, between rounds", "dim")


def _time(name: str, seconds: float, whole: float) -> Text:
    return _label(f"  {name}").append(f" {seconds * 1e3:6.1f} ms {seconds / whole:5.0%}  ")


def _peers(peers: Sequence[Peer], width: int, marks: Marks) -> Table:
    names = ("running", "waiting", "steps/s", "KV pages: held, cached, free")
    if width < _WIDE:
        names = ("run", "wait", "steps/s", "held cached free")
    table = _table("peer", "address", "", *names, left=(0, 1, 2, 6))
    for peer in peers:
        load = peer.load
        table.add_row(
            peer.role,
            Text(peer.address, overflow="fold"),
            _reached(peer),
            "-" if load is None else str(load.running_count),
            "-" if load is None else str(load.waiting_count),
            "-" if peer.steps_a_second is None else number(peer.steps_a_second),
            Text("does not tell", "dim") if load is None else _pages(load, min(24, width - 74), marks),
        )
    return table


def _reached(peer: Peer) -> Text:
    if peer.reachable_from == peer.process_count:
        return Text("up", "green")
    if not peer.reachable_from:
        return Text("AWAY", "bold red")
    return Text(f"up for {peer.reachable_from} of {peer.process_count}", "yellow")


def _pages(load: status_pb2.PeerLoad, cells: int, marks: Marks) -> Text:
    free = load.page_count - load.held_page_count - load.cached_page_count
    text = Text(overflow="fold")
    if cells >= _LEAST_PAGE_CELLS and load.page_count:
        held = math.ceil(load.held_page_count / load.page_count * cells)
        cached = min(cells - held, math.ceil(load.cached_page_count / load.page_count * cells))
        text.append(marks.parts[-1] * held, "yellow").append(marks.half * cached, "cyan")
        text.append("." * (cells - held - cached), "dim").append(" ")
    return text.append(f"{load.held_page_count} {load.cached_page_count} {free}")


def _turns(turns: Sequence[Turn], most: int) -> Iterator[RenderableType]:
    if not turns:
        yield Text("no turn is running", "dim")
        return
    shown = turns if len(turns) <= most else turns[: max(1, most - 1)]
    table = _table("session, longest turn first", "turn", "seconds", "tokens", "tokens/s", "acceptance", left=(0,))
    for turn in shown:
        table.add_row(
            Text(turn.session_id, "cyan", overflow="fold"),
            str(turn.number),
            f"{turn.elapsed:.1f}",
            str(turn.token_count),
            number(turn.tokens_per_second),
            percent(turn.acceptance),
        )
    yield table
    if len(turns) > len(shown):
        yield Text(f"and {len(turns) - len(shown)} more", "dim")


def _table(*columns: str, left: Sequence[int] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place in left else "right")
    return table


def number(value: float) -> str:
    """In few characters: 0, 0.4, 12, 1234, 123k."""
    if value >= 99_999.5:
        return f"{value / 1000:.0f}k"
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def percent(share: float | None) -> str:
    """A share, or a dash if there is none."""
    return "-" if share is None else f"{share:.0%}"


def duration(seconds: float) -> str:
    """In one or two units: 42 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    for unit, name, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            return f"{int(seconds // unit)} {name} {int(seconds % unit // below)} {smaller}"
    return f"{seconds:.0f} s"
