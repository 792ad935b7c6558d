"""The command line: each command of ``slipstream`` is a module of `slipstream.cli.commands`."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, NoReturn

import typer

from slipstream.cli.commands.bench import bench
from slipstream.cli.commands.chat import chat
from slipstream.cli.commands.compile import compile_ahead
from slipstream.cli.commands.dequantise import dequantise
from slipstream.cli.commands.distill import distill
from slipstream.cli.commands.drift import drift
from slipstream.cli.commands.export import export
from slipstream.cli.commands.info import info
from slipstream.cli.commands.list_models import list_models
from slipstream.cli.commands.plan import plan
from slipstream.cli.commands.pull import pull
from slipstream.cli.commands.serve import serve
from slipstream.cli.commands.session import sessions
from slipstream.cli.commands.swap import swap
from slipstream.cli.commands.token import token
from slipstream.cli.commands.top import top
from slipstream.cli.commands.trace import trace
from slipstream.cli.terminal import settle_streams
from slipstream.version import VERSION

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_AS_IN_VLLM = {"token_normalize_func": lambda name: name.replace("_", "-")}
"""Options are found with underscores too."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


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

    OpenAI's API, a web chat and gRPC with one command: slipstream serve MODEL

    What a command does, with an example: slipstream COMMAND -h
    """


def version() -> None:
    """Show Slipstream's version."""
    typer.echo(VERSION)


# `slipstream --help` lists them in this order.
app.command(context_settings=_AS_IN_VLLM)(serve)
app.command(name="up", hidden=True, context_settings=_AS_IN_VLLM)(serve)  # its older name
app.command()(chat)
app.command()(info)
app.command()(export)
app.command()(top)
app.command()(trace)
app.command()(drift)
app.command()(bench)
app.command()(swap)
app.command()(plan)
app.command()(pull)
app.command(name="list")(list_models)
app.command()(dequantise)
app.add_typer(distill, name="distill")
app.command()(token)
app.command(name="compile")(compile_ahead)
app.command()(version)
app.add_typer(sessions, name="session")


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
