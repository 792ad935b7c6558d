"""The end of a command that cannot do what it was asked: one line on standard error that says what
would be right, and status 1."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console

from slipstream.client import PeerError
from slipstream.errors import SlipstreamError
from slipstream.reasons import Code, Reason

progress = Console(stderr=True)

_ADVICE = {
    Code.UNAVAILABLE.name: "is an orchestrator running there? slipstream serve starts one here",
    Code.UNIMPLEMENTED.name: "the orchestrator there is older than this command",
    Reason.SESSION_NOT_FOUND: "slipstream session list shows all sessions, slipstream top those whose turns run",
    Reason.OPERATORS_ONLY: "the access file says who is an operator: operator = true",
    Reason.UNAUTHENTICATED: "put the token into SLIPSTREAM_TOKEN, or into a file that --token-file names",
}
"""Advice for an error, by its reason."""


@contextmanager
def refusals(address: str, status: int = 1) -> Iterator[None]:
    """A readable end for what the orchestrator refuses, or if there is none, or if the options
    cannot reach any. The command then exits with ``status``."""
    try:
        yield
    except PeerError as error:
        advice = _ADVICE.get(error.reason)
        fail(f"{address}: {error}{f'; {advice}' if advice else ''}", status)
    except SlipstreamError as error:
        fail(str(error), status)


def fail(message: str, status: int = 1) -> NoReturn:
    """Print the line and exit."""
    progress.print(f"slipstream: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(status)
