"""``slipstream session list`` and ``slipstream session delete``: the sessions that an orchestrator
keeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from slipstream.cli.ending import progress, refusals
from slipstream.cli.output import output
from slipstream.cli.reaching import Server, with_server
from slipstream.cli.terminal import argument_text
from slipstream.cli.top_screen import duration
from slipstream.client import SessionInfo

sessions = typer.Typer(no_args_is_help=True, help="List and delete the sessions that an orchestrator keeps.")


@sessions.command(name="list")
@with_server
def list_all(
    server: Server, as_json: Annotated[bool, typer.Option("--json", help="print JSON instead, for a program")] = False
) -> None:
    """List your sessions, the last created first. Resume one with slipstream chat --session ID.

    slipstream session list --address 127.0.0.1:50051

    For a script: slipstream session list --json
    """
    with refusals(server.address), server.client() as client:
        found = list(client.list_sessions())
    if as_json:
        typer.echo(json.dumps([_as_dict(session) for session in found]))
    elif found:
        output().print(table(found, datetime.now(UTC)))
    else:
        progress.print("no sessions; slipstream chat begins one", highlight=False)


@sessions.command()
@with_server
def delete(
    server: Server,
    session: Annotated[list[str], typer.Argument(help="ids of sessions, as slipstream session list shows them")],
) -> None:
    """Delete sessions for good: a running turn ends, and messages and tokens are gone.

    To keep a copy first: slipstream export 218bec703ea10c96 > session.json

    Then: slipstream session delete 218bec703ea10c96
    """
    with refusals(server.address), server.client() as client:
        for given in session:
            client.delete_session(argument_text(given, "a session's id"))
            typer.echo(f"deleted {given}")


def table(found: Sequence[SessionInfo], now: datetime) -> Table:
    """Return a line for each session, with its times as seen from ``now``."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("session", "turns", "tokens", "created", "last active", "expires", ""):
        shown.add_column(name, justify="right" if name in ("turns", "tokens") else "left", no_wrap=True)
    for session in found:
        running = f"turn {session.running_turn} runs" if session.running_turn is not None else ""
        times = (
            session.create_time.astimezone().strftime("%Y-%m-%d %H:%M"),
            f"{_length(session.last_active_time, now)} ago",
            f"in {_length(now, session.expire_time)}",
        )
        shown.add_row(session.session_id, str(session.turn_count), str(session.token_count), *times, running)
    return shown


def _length(start: datetime, end: datetime) -> str:
    """The two clocks may differ: nothing ends before it starts."""
    return duration(max(0.0, (end - start).total_seconds()))


def _as_dict(session: SessionInfo) -> dict[str, Any]:
    return {
        name: value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
        for name, value in asdict(session).items()
    }
