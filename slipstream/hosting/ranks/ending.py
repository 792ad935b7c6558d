"""The end of a process of ranks, from a thread that is not the main one."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn


def end_now(status: int, line: str) -> NoReturn:
    """End this process at once, after one line on standard error, if there is one: a collective
    that waits for a lost rank cannot be interrupted. A full disk takes the line, not the end."""
    with suppress(OSError, ValueError):
        if line:
            sys.stderr.write(f"{line}\n")  # in one piece, for other ranks write there too
            sys.stderr.flush()
    os._exit(status)
