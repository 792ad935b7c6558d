"""``slipstream top``: what an orchestrator does now."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

from slipstream.cli.ending import refusals
from slipstream.cli.reaching import Server, with_server
from slipstream.cli.top import as_dict, look_twice, print_once, watch


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
