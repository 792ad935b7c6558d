"""``slipstream distill``: the training, which a process of its own runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.ending import fail
from slipstream.extras import require
from slipstream.interpreter import module_command

_MODULE = "slipstream.distilling"


def train(
    context: typer.Context,
    target: Annotated[str, typer.Option(metavar="MODEL", help="target whose answers were collected")] = "",
    draft: Annotated[str, typer.Option(metavar="MODEL", help="draft to train: a directory or hub id")] = "",
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="folder of collected positions")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="new folder for the trained draft")] = None,
) -> None:
    """Train a draft on its target's own answers, so that the target accepts more of its hints.

    slipstream distill --target target --draft draft --data collected --out new-draft
    """
    if context.invoked_subcommand is not None:
        return
    given = {"--target": target, "--draft": draft, "--data": data, "--out": out}
    if missing := [flag for flag, value in given.items() if not value]:
        fail(f"{', '.join(missing)} must be given; slipstream distill -h shows an example")
    require("slipstream", "torch")
    flags = [word for flag, value in given.items() for word in (flag, str(value))]
    sys.exit(subprocess.run(module_command(_MODULE, *flags), check=False).returncode)
