"""``slipstream trace``: a session's last turns round by round, in the terminal, as a file or as
JSON."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from rich.console import Console

from slipstream.cli.trace_html import page
from slipstream.cli.trace_screen import Footnotes, Waterfall
from slipstream.v1 import orchestrator_pb2


def print_turns(session_id: str, answer: orchestrator_pb2.GetTurnTracesResponse, console: Console) -> None:
    """One waterfall after another."""
    for turn in answer.turns:
        console.print(Waterfall(session_id, turn))
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


def as_json(answer: orchestrator_pb2.GetTurnTracesResponse) -> str:
    """Return the answer as the contract's JSON, zeros included."""
    return json.dumps(
        MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    )
