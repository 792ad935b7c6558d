"""``slipstream trace``: a session's last turns, round by round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.message_json import message_json
from slipstream.cli.reaching import Server, with_server
from slipstream.cli.terminal import argument_text
from slipstream.cli.trace import print_turns, write_html


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
