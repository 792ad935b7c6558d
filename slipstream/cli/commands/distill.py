"""``slipstream distill``: trains a draft on its target's answers, and collects the answers."""

from __future__ import annotations

import typer

from slipstream.cli.commands.distill_collect import collect
from slipstream.cli.commands.distill_train import train

distill = typer.Typer(invoke_without_command=True, callback=train)
distill.command()(collect)
