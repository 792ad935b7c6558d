"""Commands that start another process with the same Python."""

from __future__ import annotations

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module and takes no code from the current folder.

    Without ``-P`` a file there that is called like a module, ``queue.py`` for one, is executed in
    that module's place.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
