"""``slipstream info``: what an orchestrator serves."""

from __future__ import annotations

from typing import Annotated

import typer

from slipstream.cli.ending import refusals
from slipstream.cli.message_json import message_json
from slipstream.cli.reaching import Server, with_server


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
