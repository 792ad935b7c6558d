"""Write a session's last turns as one HTML file that stands alone, without a script, a font or a
link.

The file can be sent to other people.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from slipstream.cli.remarks import counted, headline, is_bad, left_out_of, notes_of, remarks_of
from slipstream.cli.timeline import Kind, parts_of, proposals_of, scale_of, span_of, sums_of
from slipstream.cli.words import (
    PROPOSERS,
    margin_of,
    milliseconds,
    outcome_of,
    proposer_of,
)
from slipstream.rpc.wire import seconds
from slipstream.v1 import trace_pb2

_COLUMNS = (
    "#",
    "start",
    "",
    "",
    "ms",
    "drafted / accepted / committed",
    "by",
    "margin",
)
_EXPLAINED = (
    "A row is a round, first on the turn's time and then beside the others. Above are its parts and the time "
    "that the verifier was idle for it; below is what was asked of the draft, paler if the round did not wait for the answer. "
    "The column margin has the least lead of a chosen token over the next best. A click on a row shows what it asked of whom."
)
_MOST_TICKS = 5

_STYLE = """
:root {
  color-scheme: light dark;
  --ground: #ffffff; --ink: #1c2024; --faint: #60646c; --line: #d9d9e0; --hover: #f4f4f8;
  --draft: #2f8f5b; --queue: #d9480f; --forward: #1864ab; --network: #ae3ec9;
  --idle: #c4c8d0; --unanswered: #c92a2a; --rest: #b08900;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14161a; --ink: #e6e8eb; --faint: #a0a5ad; --line: #33373d; --hover: #1e2126;
    --draft: #51cf8a; --queue: #ff8549; --forward: #5aa9f0; --network: #da77f2;
    --idle: #4a4f57; --unanswered: #ff6b6b; --rest: #e0b93a;
  }
}
body {
  margin: 2rem auto; max-width: 90rem; padding: 0 1rem; background: var(--ground); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif;
}
h1 { font-size: 1.3rem; }
h2 { font-size: 1.05rem; margin-top: 2.5rem; }
p, ul { max-width: 75rem; }
.faint { color: var(--faint); }
.bad { color: var(--unanswered); font-weight: 600; }
code { font: 0.92em ui-monospace, monospace; overflow-wrap: anywhere; }
.legend span { display: inline-block; margin-right: 1.4em; white-space: nowrap; }
.legend i { display: inline-block; width: 1.1em; height: 0.8em; margin-right: 0.4em; }
.rounds { overflow-x: auto; }
.rounds > * { min-width: 74rem; }
.row {
  display: grid; align-items: center; column-gap: 0.7rem; padding: 1px 0; font-variant-numeric: tabular-nums;
  grid-template-columns: 2.5rem 4rem minmax(10rem, 1fr) minmax(12rem, 1fr) 3.5rem 6rem 7.5rem 7.5rem 4rem 2.5rem 4.5rem 4rem;
}
.row > :nth-child(-n + 2), .row > :nth-child(5) { text-align: right; }
.head { font-weight: 600; border-bottom: 1px solid var(--line); align-items: end; }
.note { margin-left: 7.9rem; }
summary { list-style: none; cursor: pointer; }
summary::-webkit-details-marker { display: none; }
summary:hover { background: var(--hover); }
svg { display: block; width: 100%; height: 22px; overflow: visible; }
svg.axis { height: 16px; font-size: 11px; fill: var(--faint); }
rect { stroke-width: 0.7px; }
rect.part { y: 2px; height: 10px; }
rect.aside { y: 15px; height: 4px; }
rect.left { opacity: 0.4; }
table { border-collapse: collapse; margin: 0.3rem 0 0.9rem 7.9rem; }
caption { text-align: left; color: var(--faint); }
th, td { text-align: left; padding: 1px 1.1rem 1px 0; font-weight: normal; }
th { color: var(--faint); }
"""


def page(session_id: str, turns: Sequence[trace_pb2.TurnTrace]) -> str:
    """The whole file."""
    title = escape(f"Slipstream: session {session_id}")
    kinds = "".join(
        f".{_class(kind)} {{ fill: var(--{_class(kind)}); stroke: var(--{_class(kind)}); }}\n" for kind in Kind
    )
    swatches = "".join(f"i.{_class(kind)} {{ background: var(--{_class(kind)}); }}\n" for kind in Kind)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{_STYLE}{kinds}{swatches}</style>\n</head>\n<body>\n<h1>{title}</h1>",
            f'<p class="faint">{escape(_EXPLAINED)}</p>',
            *(line for turn in turns for line in _turn(session_id, turn)),
            "</body>\n</html>\n",
        ]
    )


def _class(kind: Kind) -> str:
    return kind.value


def _turn(session_id: str, turn: trace_pb2.TurnTrace) -> Iterator[str]:
    yield f"<section>\n<h2>Turn {turn.turn}</h2>\n<p>{escape(headline(session_id, turn))}</p>"
    if turn.trace_id:
        yield f"<p>OpenTelemetry trace <code>{escape(turn.trace_id)}</code></p>"
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in remarks_of(turn.rounds))
    yield f"<ul>{remarks}</ul>"
    if left_out := left_out_of(turn):
        yield f'<p class="faint">{escape(left_out)}</p>'
    if turn.rounds:
        yield from _rounds(turn)
    yield "</section>"


def _rounds(turn: trace_pb2.TurnTrace) -> Iterator[str]:
    sums = sums_of(turn.rounds)
    whole = sum(sums.values())
    entries = (
        f'<span><i class="{_class(kind)}"></i>{escape(kind.value)} {milliseconds(length)} {length / whole:.0%}</span>'
        for kind, length in sums.items()
        if length
    )
    yield f'<p class="legend">{"".join(entries)}</p>\n<div class="rounds">'
    end = max(seconds(turn.total), *(span_of(trace)[1] for trace in turn.rounds), 1e-9)
    scale = scale_of(turn.rounds)
    heads = [f"<span>{escape(name)}</span>" for name in _COLUMNS]
    heads[2], heads[3] = _axis(end), _axis(scale)
    yield f'<div class="row head">{"".join(heads)}</div>'
    for trace in turn.rounds:
        yield _round(trace, end, scale)
    yield "</div>"


def _axis(end: float) -> str:
    """Ticks at times without many digits."""
    rough = end / _MOST_TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    ticks = (
        f'<text x="{step * place / end:.3%}" y="12">{milliseconds(step * place) if place else "0"}</text>'
        for place in range(int(0.92 * end / step) + 1)  # the last one's digits need room
    )
    return f'<svg class="axis">{"".join(ticks)}</svg>'


def _round(trace: trace_pb2.RoundTrace, end: float, scale: float) -> str:
    values = (
        str(trace.number),
        f"{seconds(trace.start) * 1e3:.1f}",
        f"{seconds(trace.total) * 1e3:.1f}",
        f"{trace.draft_token_count} / {trace.accepted_token_count} / {trace.committed_token_count}",
        PROPOSERS.get(proposer_of(trace), proposer_of(trace)),
        margin_of(trace),
    )
    cells = [f"<span>{escape(value)}</span>" for value in values]
    start = seconds(trace.start)
    cells[2:2] = [_bars(trace, 0.0, end), _bars(trace, start, start + scale)]
    notes = "".join(f'<div class="bad note">{escape(note)}</div>' for note in notes_of(trace))
    colour = " bad" if is_bad(trace) else ""
    return f'<details><summary class="row{colour}">{"".join(cells)}</summary>{_exchanges(trace)}</details>{notes}'


def _bars(trace: trace_pb2.RoundTrace, left: float, right: float) -> str:
    """Return the bars of a round between two moments."""
    bars = [
        _bar(
            (part.start - left) / (right - left),
            (part.end - left) / (right - left),
            "part",
            _class(part.kind),
            f"{part.kind.value} {milliseconds(part.length)}",
        )
        for part in parts_of(trace)
    ]
    for exchange in proposals_of(trace):
        start, stop = span_of(exchange)
        stop = stop if exchange.HasField("total") else right
        colour = _class(Kind.UNANSWERED if exchange.error_reason else Kind.PROPOSE)
        told = f"draft {exchange.address} {milliseconds(stop - start)}{', not waited for' if exchange.left else ''}"
        lane = "aside left" if exchange.left else "aside"
        bars.append(_bar((start - left) / (right - left), (stop - left) / (right - left), lane, colour, told))
    label = f"round {trace.number}, {outcome_of(trace.outcome)}"
    return f'<svg role="img" aria-label="{escape(label)}">{"".join(bars)}</svg>'


def _bar(start: float, stop: float, lane: str, colour: str, told: str) -> str:
    """Positions are shares of the width; nothing of what is outside."""
    start, stop = max(0.0, start), min(1.0, stop)
    if stop <= start:
        return ""
    where = f'x="{start:.3%}" width="{stop - start:.3%}"'
    return f'<rect class="{lane} {colour}" {where}><title>{escape(told)}</title></rect>'


def _exchanges(trace: trace_pb2.RoundTrace) -> str:
    """Return the rows of a round's requests."""
    heads = ("asked", "of", "at", "total", "queue", "forward", "of these prompts", "network", "rows of its step", "")
    facts = (
        f"after {trace.base_length} tokens; {outcome_of(trace.outcome)}; "
        f"the verifier idle for {milliseconds(seconds(trace.verifier_idle))}"
    )
    rows = [("th", heads), *(("td", _exchange(exchange)) for exchange in trace.exchanges)]
    body = "".join(
        f"<tr>{''.join(f'<{cell}>{escape(value)}</{cell}>' for value in values)}</tr>" for cell, values in rows
    )
    return f"<table><caption>{escape(facts)}</caption>{body}</table>"


def _exchange(exchange: trace_pb2.ExchangeTrace) -> tuple[str, ...]:
    answered = exchange.HasField("forward")
    times = (exchange.queue, exchange.forward, exchange.prefill, exchange.network)
    ending = (counted(exchange.setbacks), exchange.error_reason, "not waited for" if exchange.left else "")
    return (
        "a verification" if exchange.kind == trace_pb2.ExchangeTrace.KIND_VERIFY else "a proposal",
        exchange.address,
        f"{seconds(exchange.start) * 1e3:.1f} ms",
        milliseconds(seconds(exchange.total)) if exchange.HasField("total") else "-",
        *(milliseconds(seconds(time)) if answered else "-" for time in times),
        str(exchange.step_token_count or "-"),
        ", ".join(filter(None, ending)),
    )
