"""``slipstream trace``: a session's last turns round by round, in the terminal, as a file or as
JSON."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rich.console import Console

from slipstream.cli.trace_html import page
from slipstream.cli.trace_screen import Footnotes, Waterfall
from slipstream.v1 import orchestrator_pb2


def print_turns(
    session_id: str, answer: orchestrator_pb2.GetTurnTracesResponse, console: Console, *, every_round: bool
) -> None:
    """One waterfall after another."""
    for turn in answer.turns:
        console.print(Waterfall(session_id, turn, every_round))
        console.print()
    console.print(Footnotes())


def write_html(session_id: str, answer: orchestrator_pb2.GetTurnTracesResponse, file: Path) -> None:
    """One file to send. OSError if it cannot be written; what there is of it by then is removed."""
    text = page(session_id, answer.turns)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError:
        with contextlib.suppress(OSError):
            if file.is_file():
                file.unlink()
        raise
