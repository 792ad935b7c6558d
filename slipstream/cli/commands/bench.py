"""``slipstream bench``: the load generator."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from slipstream.bench.goals import is_goal, parse_goals
from slipstream.bench.lengths import Lengths
from slipstream.bench.picture import draw
from slipstream.bench.plan import Findings, Plan, carry_out
from slipstream.bench.schedule import Schedule
from slipstream.bench.server import Asked
from slipstream.bench.servers import Reach, is_http, server_at
from slipstream.bench.showing import as_dict, remarks, summary, table
from slipstream.cli.commands.options import DraftLength
from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.reaching import Server, with_server
from slipstream.extras import require
from slipstream.transport.reloading import FileError

_CONCURRENCY = 8
_COUNT = 100
_ROUNDS = 3

Goals = Annotated[
    list[str] | None,
    typer.Option(metavar="GOAL...", help="goals in ms that goodput is measured by: ttft:200 tpot:50 e2el:5000"),
]


@with_server
def bench(
    server: Server,
    addresses: Annotated[
        list[str] | None,
        typer.Argument(
            help="host:port of an orchestrator, or http[s]://.../v1 of any server of OpenAI's API; two are compared. "
            "Default: --address"
        ),
    ] = None,
    api: Annotated[Literal["chat", "completions"], typer.Option(help="what is asked for")] = "chat",
    model: Annotated[str, typer.Option(help="the model's name; default: the first that the server lists")] = "",
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="conversations begun a second; latencies count from then on")
    ] = None,
    arrivals: Annotated[Literal["poisson", "constant"], typer.Option(help="moments of a rate")] = "poisson",
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="most at a time; default: 8, and no limit with --rate")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="requests, or conversations of --turns; default: 100, or by --duration")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(min=0.1, help="seconds in which they begin; all run to their end")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="messages of a conversation")] = 1,
    warm_up: Annotated[int, typer.Option(min=0, help="conversations that come first and do not count")] = 1,
    prompt_tokens: Annotated[
        str, typer.Option(metavar="LENGTHS", help="128, 64:256, normal:128:32 or exponential:128")
    ] = "128",
    max_tokens: Annotated[str, typer.Option(metavar="LENGTHS", help="most tokens of an answer, likewise")] = "64",
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL file of messages or prompts, or ShareGPT's JSON, instead of made ones")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="answers as long as --max-tokens, past the model's own end")
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; default: the server's")] = None,
    draft_length: DraftLength = None,
    goodput: Goals = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="times that the load is run; default: 3 for two")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="most seconds of a request")] = 600.0,
    seed: Annotated[int, typer.Option(min=0, help="same seed: same prompts, lengths and moments")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.png", help="write a picture too")] = None,
) -> None:
    """Put load on a server and report how fast its answers came.

    Eight requests at a time, of a gateway or any other server of OpenAI's API:

    slipstream bench http://127.0.0.1:8000/v1

    Two requests a second for a minute, of an orchestrator:

    slipstream bench 127.0.0.1:50051 --rate 2 --duration 60

    Two servers in turns: slipstream bench http://127.0.0.1:8000/v1 127.0.0.1:50051
    """
    if picture is not None:
        require("slipstream", "plot")
        if not picture.parent.is_dir():
            fail(f"--picture {picture} cannot be written: {picture.parent} is no folder")
    named = [word for word in addresses or () if not is_goal(word)] or [server.address]
    if len(named) > 2:
        fail(f"give one address, or two to compare; not {len(named)}")
    with refusals(named[0]):
        plan = Plan(
            schedule=Schedule(
                rate,
                concurrency or (None if rate is not None else _CONCURRENCY),
                requests or (None if duration is not None else _COUNT),
                duration,
                arrivals,
                seed,
            ),
            prompt=Lengths.parse(prompt_tokens, "--prompt-tokens"),
            output=Lengths.parse(max_tokens, "--max-tokens"),
            file=prompts,
            turns=turns,
            warm_up=warm_up,
            rounds=rounds or (_ROUNDS if len(named) == 2 else 1),
            goals=parse_goals([*(goodput or ()), *filter(is_goal, addresses or ())]),
        )
        asked = Asked(api, model, temperature, seed, ignore_eos, draft_length, timeout)
        findings = asyncio.run(_run(plan, named, asked, server))
    _report(plan, findings, as_json, picture)


async def _run(plan: Plan, named: Sequence[str], asked: Asked, server: Server) -> Findings:
    servers = [server_at(address, asked, _reach(server, address)) for address in named]
    total = None
    if plan.schedule.count is not None and plan.schedule.duration is None:
        turns = 1 if plan.file else plan.turns
        total = plan.schedule.count * turns * plan.rounds * len(servers)
    try:
        with _bar(total) as (bar, task):
            return await carry_out(
                plan, servers, lambda record: bar.advance(task), lambda stage: bar.update(task, description=stage)
            )
    finally:
        for one in servers:
            await one.close()


@contextmanager
def _bar(total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=progress, transient=True) as bar:
        yield bar, bar.add_task("", total=total)


def _reach(server: Server, address: str) -> Reach:
    if not is_http(address):
        return Reach(credentials=server.credentials(), metadata=server.at(address).metadata())
    token = server.token() or os.environ.get("OPENAI_API_KEY") or None
    return Reach(token, tls=_tls(server) if address.startswith("https:") else None)


def _tls(server: Server) -> ssl.SSLContext:
    """Return what checks a server's certificate, and shows a client's. FileError."""
    server.credentials()  # checks the files, and names the flag of one that is wrong
    context = ssl.create_default_context(cafile=server.tls_ca or None)
    if server.tls_certificate:
        try:
            context.load_cert_chain(server.tls_certificate, server.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise FileError(f"--tls-certificate {server.tls_certificate} cannot be used: {error}") from error
    return context


def _report(plan: Plan, findings: Findings, as_json: bool, picture: Path | None) -> None:
    if as_json:
        typer.echo(json.dumps(as_dict(plan, findings)))
    else:
        console = Console(highlight=False)
        console.print(table(plan, findings))
        for line in summary(plan, findings):
            console.print(line, markup=False, soft_wrap=True)
    for remark in remarks(plan, findings):
        progress.print(remark, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if picture is not None:
        try:
            draw(findings, picture)
        except OSError as error:
            fail(f"{picture} cannot be written: {error.strerror or error}")
        progress.print(f"{picture} is written", markup=False, highlight=False, soft_wrap=True)
    for outcome in findings.outcomes:
        if not any(report.completed for report in outcome.rounds):
            fail(f"{outcome.address}: no request was answered")
