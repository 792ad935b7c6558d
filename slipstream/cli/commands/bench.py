"""``slipstream bench``: the benchmarks of a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from slipstream.cli.ending import fail


def bench(context: typer.Context) -> None:
    """Run the benchmarks of a checkout: all, or those named; --help lists them."""
    checkout = Path(__file__).parents[3]
    if not (checkout / "benchmarks").is_dir():
        fail("the benchmarks are not installed with the package: clone the repository and run make bench there")
    # The folder it runs in is the checkout: its code is what is meant.
    raise SystemExit(subprocess.call([sys.executable, "-m", "benchmarks", *context.args], cwd=checkout))
