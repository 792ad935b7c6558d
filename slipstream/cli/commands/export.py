"""``slipstream export``: all that is kept of a session."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from slipstream.cli.ending import refusals
from slipstream.cli.reaching import Server, with_server
from slipstream.cli.terminal import argument_text, shows_unicode


@with_server
def export(server: Server, session: Annotated[str, typer.Argument(help="its id")]) -> None:
    """Print all that is kept of a session, as JSON: messages, tokens, seeds.

    slipstream export 218bec703ea10c96 > session.json
    """
    with refusals(server.address), server.client() as client:
        found = client.export_session(argument_text(session, "the session's id"))
        typer.echo(json.dumps(found, ensure_ascii=not shows_unicode(), indent=2))
