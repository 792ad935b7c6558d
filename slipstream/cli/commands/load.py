"""``slipstream load``: many chats at once."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from slipstream.cli.commands.options import DraftLength
from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.load import LoadReport, LoadSettings, run_load
from slipstream.cli.reaching import Server, with_server
from slipstream.client import Settings


@with_server
def load(
    server: Server,
    sessions: Annotated[int, typer.Option(min=1, help="chats to hold")] = 16,
    turns: Annotated[int, typer.Option(min=1, help="messages in each")] = 2,
    concurrency: Annotated[int, typer.Option(min=1, help="chats at a time; with --rate as many as there are")] = 8,
    rate: Annotated[float | None, typer.Option(min=0.001, help="chats begun a second, at random moments")] = None,
    prompt_words: Annotated[int, typer.Option(min=1, help="words a message has")] = 12,
    max_tokens: Annotated[int, typer.Option(min=1, help="most tokens an answer may have")] = 64,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; default: the model's own")] = None,
    draft_length: DraftLength = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Hold many chats at once and report how fast the answers came."""
    generation = Settings(temperature=temperature, max_token_count=max_tokens, seed=0, draft_length=draft_length)
    settings = LoadSettings(sessions, turns, concurrency, rate, prompt_words, generation=generation)
    with refusals(server.address), Progress(console=progress, transient=True) as bar:
        task = bar.add_task("turns", total=sessions * turns)
        report = run_load(
            server.address,
            settings,
            lambda: bar.advance(task),
            credentials=server.credentials(),
            metadata=server.metadata(),
        )
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        Console().print(_load_table(report))
    for reason, count in report.failures.items():
        progress.print(f"{count} chats failed: {reason}", style="red")
    if not report.turn_count:
        fail(f"{server.address}: no turn was answered")


def _load_table(report: LoadReport) -> Table:
    table = Table(title=f"{report.turn_count} turns, {report.token_count} tokens in {report.seconds:.1f} s")
    for column in ("milliseconds", "p50", "p95", "p99"):
        table.add_column(column, justify="left" if column == "milliseconds" else "right")
    rows = (
        ("to the first token", report.time_to_first_token),
        ("between tokens", report.inter_token),
        ("for a turn", report.turn),
    )
    for name, times in rows:
        table.add_row(name, *(f"{time * 1e3:.1f}" for time in (times.p50, times.p95, times.p99)))
    table.caption = f"{report.tokens_per_second:.0f} tokens/s, {report.goodput:.0f} of them as fast as wished for"
    return table
