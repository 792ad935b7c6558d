"""The command line: ``slipstream chat``, ``up``, ``info``, ``session``, ``export``, ``top``,
``trace``, ``token``, ``load``..."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from slipstream.cli.chat import converse
from slipstream.cli.compile import compile_halves
from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.listen_addresses import refuse_plaintext
from slipstream.cli.load import LoadReport, LoadSettings, run_load
from slipstream.cli.local import PairSettings
from slipstream.cli.message_json import message_json
from slipstream.cli.reaching import Server, with_server
from slipstream.cli.service_flags import ServiceFlags, metrics_addresses
from slipstream.cli.serving import serving
from slipstream.cli.session import sessions
from slipstream.cli.terminal import argument_text, file_text, settle_streams, shows_unicode
from slipstream.cli.token import token_and_entry
from slipstream.cli.top import as_dict, look_twice, print_once, watch
from slipstream.cli.trace import print_turns, write_html
from slipstream.client import PeerError, Settings
from slipstream.extras import require
from slipstream.version import VERSION

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_LOOK_SECONDS = 0.2
"""From one look at the services that ``up`` has started to the next. macOS cannot wait for a
signal."""

Target = Annotated[
    str, typer.Option(help="target model: a directory, a hub id, a .gguf file, 'embedded' or 'arithmetic:...'")
]
Draft = Annotated[str, typer.Option(help="draft model, likewise; empty for none")]
Device = Annotated[str, typer.Option(help="torch device of both models")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32")]
DraftLength = Annotated[int | None, typer.Option(help="draft tokens a round; 0 is off; default: the server's")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


app.add_typer(sessions, name="session")


@app.callback()
def every_command(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show Slipstream's version and exit"),
    ] = False,
) -> None:
    """Serve a large language model faster with a small one that guesses ahead; the text never
    changes.

    A first chat, with the models in the package: slipstream chat --local

    What a command does, with an example: slipstream COMMAND -h
    """


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def bench(context: typer.Context) -> None:
    """Run the benchmarks of a checkout: all, or those named; --help lists them."""
    checkout = Path(__file__).parents[2]
    if not (checkout / "benchmarks").is_dir():
        fail("the benchmarks are not installed with the package: clone the repository and run make bench there")
    # The folder it runs in is the checkout: its code is what is meant.
    raise SystemExit(subprocess.call([sys.executable, "-m", "benchmarks", *context.args], cwd=checkout))


@app.command()
def up(
    target: Target = "embedded",
    draft: Draft = "embedded",
    device: Device = "cpu",
    dtype: Dtype = "bfloat16",
    orchestrator_address: Annotated[str, typer.Option(help="host:port to listen on")] = "127.0.0.1:50051",
    verifier_address: Annotated[str, typer.Option(help="host:port to listen on")] = "127.0.0.1:50052",
    draft_address: Annotated[str, typer.Option(help="host:port to listen on")] = "127.0.0.1:50053",
    store: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="where sessions are kept: a SQLite file, postgresql://..., or memory; default: a file in your state folder",
        ),
    ] = "",
    access: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="TOML file of callers and tokens (see slipstream token); default: anyone may call",
        ),
    ] = "",
    kv_memory_mib: Annotated[
        str,
        typer.Option(
            metavar="MIB",
            help="MiB for the KV cache of each model: more for more or longer sessions; default: 512",
        ),
    ] = "",
    metrics_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="/metrics of the orchestrator; verifier and draft take the next two ports",
        ),
    ] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="allow addresses that are not on loopback, without TLS")
    ] = False,
) -> None:
    """Run the three services here until Ctrl-C.

    The models in the package, sessions kept in memory only: slipstream up --store memory

    Your own models: slipstream up --target models/big --draft models/small --kv-memory-mib 4096
    """
    chosen = {"orchestrator": orchestrator_address, "verifier": verifier_address, "draft": draft_address}
    if not draft:
        del chosen["draft"]
    metrics = metrics_addresses(metrics_address, chosen)
    listening = {f"--{name}-address": address for name, address in chosen.items()}
    with refusals(""):
        if not insecure:
            refuse_plaintext(listening)
    flags = ServiceFlags(insecure, {"store": store, "access": access, "kv_memory_mib": kv_memory_mib}, metrics)
    settings = PairSettings(
        target=target,
        draft=draft,
        device=device,
        dtype=dtype,
        target_flags=flags.of("verifier"),
        draft_flags=flags.of("draft"),
        orchestrator_flags=flags.of("orchestrator"),
        store="",
    )
    listening |= {f"--metrics-address of the {name}": address for name, address in metrics.items()}
    with serving(settings, listening, **chosen) as local:
        for name, service in local.services.items():
            progress.print(f"{name:>12}  {service.address}  log {service.log}", soft_wrap=True)
        for name, address in metrics.items():
            progress.print(f"{name:>12}  http://{address}/metrics", soft_wrap=True)
        progress.print("ready; Ctrl-C stops all three")
        while all(service.process.poll() is None for service in local.services.values()):
            time.sleep(_LOOK_SECONDS)
        ended = next(s for s in local.services.values() if s.process.poll() is not None)
        fail(ended.last_words())


@app.command()
@with_server
def chat(
    server: Server,
    local: Annotated[bool, typer.Option("--local", help="start the three services here first, on free ports")] = False,
    target: Target = "embedded",
    draft: Draft = "embedded",
    device: Device = "cpu",
    dtype: Dtype = "bfloat16",
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    session: Annotated[str | None, typer.Option(help="id of a session to resume")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; default: the model's own")] = None,
    seed: Annotated[int | None, typer.Option(help="same seed, same text")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="most tokens an answer may have")] = None,
    draft_length: DraftLength = None,
    prediction: Annotated[
        Path | None, typer.Option(help="UTF-8 file that the answers probably repeat in large part: they come sooner")
    ] = None,
    show_rounds: Annotated[
        bool,
        typer.Option("--show-rounds", help="mark each token by how it came about: accepted, recovered, bonus, plain"),
    ] = False,
) -> None:
    """Talk to the model. Where standard input is no terminal: one message a line, exit at its end.

    To see what the draft gets right while the answer comes: slipstream chat --local --show-rounds
    """
    settings = Settings(
        temperature=temperature,
        seed=seed,
        max_token_count=max_tokens,
        draft_length=draft_length,
        token_origins=show_rounds or None,
    )
    with refusals(server.address):
        session = None if session is None else argument_text(session, "--session")
        system = None if system is None else argument_text(system, "--system")
        predicted = None if prediction is None else file_text("--prediction", prediction)
    options: dict[str, Any] = {"session_id": session, "system": system, "settings": settings}
    if not local:
        _converse(server, options, show_rounds, predicted)
        return
    with serving(PairSettings(target=target, draft=draft, device=device, dtype=dtype)) as services:
        _converse(Server(services.orchestrator_address), options, show_rounds, predicted)


@app.command()
@with_server
def info(
    server: Server, as_json: Annotated[bool, typer.Option("--json", help="print JSON instead, for a program")] = False
) -> None:
    """Show what an orchestrator serves: its models, its limits, and whether it reaches them.

    slipstream info --address 127.0.0.1:50051

    For a script: slipstream info --json
    """
    with refusals(server.address), server.client() as client:
        found = client.server_info()
        typer.echo(message_json(found) if as_json else str(found).rstrip())


@app.command()
@with_server
def export(server: Server, session: Annotated[str, typer.Argument(help="its id")]) -> None:
    """Print all that is kept of a session, as JSON: messages, tokens, seeds.

    slipstream export 218bec703ea10c96 > session.json
    """
    with refusals(server.address), server.client() as client:
        found = client.export_session(argument_text(session, "the session's id"))
        typer.echo(json.dumps(found, ensure_ascii=not shows_unicode(), indent=2))


@app.command()
@with_server
def top(
    server: Server,
    interval: Annotated[float, typer.Option(min=0.1, help="seconds from one look to the next")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="print one look over an interval, as without a terminal")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print that look as JSON")] = False,
) -> None:
    """Watch an orchestrator and its services: speed, acceptance, where time goes, who is busy.

    On a live screen until Ctrl-C: slipstream top --address 127.0.0.1:50051

    For a script: slipstream top --once --interval 10 --json
    """
    console = Console(highlight=False)
    with refusals(server.address), server.client(reconnect=0.0) as client:
        if as_json:
            typer.echo(json.dumps(as_dict(look_twice(client, interval))))
        elif once or not console.is_terminal or console.is_dumb_terminal:
            print_once(client, server.address, interval, console)
        else:
            with suppress(KeyboardInterrupt):
                watch(client, server.address, interval, console)


@app.command()
@with_server
def trace(
    server: Server,
    session: Annotated[str, typer.Argument(help="id of a session, as slipstream chat and slipstream top show it")],
    turns: Annotated[int, typer.Option(min=1, max=64, help="so many of its last turns")] = 1,
    every_round: Annotated[
        bool, typer.Option("--every-round", help="a line for each round, also for those that need no look")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="write one HTML file instead, to send to a colleague")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead")] = False,
) -> None:
    """Show a session's last turns round by round: what was accepted, and where the time went.

    Rounds that need no look share a line. The last two turns of a chat:

    slipstream trace 6a1f0c2e9b7d4835 --turns 2

    A line for each round: slipstream trace 6a1f0c2e9b7d4835 --every-round

    As a file: slipstream trace 6a1f0c2e9b7d4835 --html turn.html
    """
    with refusals(server.address), server.client() as client:
        session = argument_text(session, "the session's id")
        answer = client.turn_traces(session, turns)
    if not answer.turns:
        fail(f"session {session} has no turn whose rounds are kept: it had none yet, or newer turns took their room")
    if html is not None:
        try:
            write_html(session, answer, html)
        except OSError as error:
            fail(f"{html} cannot be written: {error.strerror or error}")
        progress.print(f"{html} is written", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(message_json(answer))
    elif html is None:
        print_turns(session, answer, Console(highlight=False), every_round=every_round)


@app.command()
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


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="name of the principal: a team, a service, a person")],
    days: Annotated[int, typer.Option(min=1, help="for how long it counts")] = 90,
) -> None:
    """Make a token for an orchestrator that knows its callers (--access FILE).

    The lines go to the file; the token is shown on the terminal, once:

    slipstream token shop >> access.toml
    """
    with refusals(""):
        name = argument_text(name, "the name")
    made, entry = token_and_entry(name, days, ascii_only=not shows_unicode())
    typer.echo(f"the token, to be kept by {name} alone: {made}", err=True)
    typer.echo(entry)


@app.command(name="compile")
def compile_ahead() -> None:
    """Compile now, for this processor, what the first start of a model would compile.

    It takes about half a minute on two cores. Later starts load the result. Run it again after an
    upgrade of Slipstream.
    """
    require("slipstream", "compiled")
    with progress.status("starting two compilers") as status:
        ended = compile_halves(status.update if progress.is_terminal else progress.print)
    if ended:
        fail(f"the compiler ended with status {ended}: see above")
    progress.print("compiled for this processor")


@app.command()
def version() -> None:
    """Show Slipstream's version."""
    typer.echo(VERSION)


def _converse(server: Server, options: dict[str, Any], shows_rounds: bool, prediction: str | None) -> None:
    def lost(error: PeerError) -> None:
        progress.print("[the connection is lost; trying again]", style="dim", markup=False)

    with refusals(server.address), server.client(on_lost=lost) as client:
        converse(client, options, shows_rounds=shows_rounds, prediction=prediction)


def main() -> None:
    """Entry point. A terminating signal unwinds like Ctrl-C, so that no process is left behind."""

    def unwind(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    settle_streams()
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, unwind)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits it ignored
    app()


if __name__ == "__main__":
    main()
