"""How a benchmark speaks: which commit and machine it measured, and a console that is wide enough for its tables."""

from __future__ import annotations

import platform
import subprocess
import sys

from rich.console import Console


class Report:
    """Prints the head when made; `console` takes tables and progress bars."""

    def __init__(self, text: str) -> None:
        self.console = Console(width=max(120, Console().width))
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        self.console.print(text.strip().splitlines()[0])
        self.console.print(f"{' '.join(sys.argv[1:])}  commit {commit or 'unknown'}, {platform.machine()}")
