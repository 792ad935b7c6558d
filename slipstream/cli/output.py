"""The console on which commands print their results."""

from __future__ import annotations

import os
import sys

from rich.console import Console

UNBOUNDED = 10_000
"""Columns that no table needs."""


def output() -> Console:
    """Return the console of results. A terminal or ``COLUMNS`` bounds its width. A file or a pipe
    does not: a table that was cut to 80 columns could not be read there."""
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if bounded else UNBOUNDED)
