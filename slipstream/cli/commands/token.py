"""``slipstream token``: a caller's token."""

from __future__ import annotations

from typing import Annotated

import typer

from slipstream.cli.ending import refusals
from slipstream.cli.terminal import argument_text, shows_unicode
from slipstream.cli.token import token_and_entry


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
