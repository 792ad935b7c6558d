"""``slipstream distill``: the training, which a process of its own runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.distilling.option_texts import TEXTS
from slipstream.extras import require
from slipstream.interpreter import module_command


def _option(name: str, metavar: str | None = None) -> Any:
    return typer.Option(f"--{name}", metavar=metavar, help=TEXTS[name], show_default=False)


def train(
    context: typer.Context,
    target: Annotated[str | None, _option("target", "MODEL")] = None,
    draft: Annotated[str | None, _option("draft", "MODEL")] = None,
    data: Annotated[Path | None, _option("data", "DIR")] = None,
    out: Annotated[Path | None, _option("out", "DIR")] = None,
    any_target: Annotated[bool | None, _option("any-target")] = None,
    config: Annotated[Path | None, _option("config", "FILE")] = None,
    device: Annotated[str | None, _option("device")] = None,
    threads: Annotated[int | None, _option("threads")] = None,
    precision: Annotated[str | None, _option("precision")] = None,
    temperature: Annotated[float | None, _option("temperature")] = None,
    kl: Annotated[float | None, _option("kl")] = None,
    held_out: Annotated[float | None, _option("held-out")] = None,
    epochs: Annotated[int | None, _option("epochs")] = None,
    learning_rate: Annotated[float | None, _option("learning-rate")] = None,
    optimizer: Annotated[str | None, _option("optimizer")] = None,
    weight_decay: Annotated[float | None, _option("weight-decay")] = None,
    batch_tokens: Annotated[int | None, _option("batch-tokens")] = None,
    max_length: Annotated[int | None, _option("max-length")] = None,
    lora_rank: Annotated[int | None, _option("lora-rank")] = None,
    checkpoint_seconds: Annotated[float | None, _option("checkpoint-seconds")] = None,
    seed: Annotated[int | None, _option("seed")] = None,
) -> None:
    """Train a draft on its target's own answers, so that the target accepts more of its hints.

    slipstream distill --target models/target --draft models/draft --data collected --out new-draft

    Ctrl-C saves the training, and the same command goes on. The new folder appears once it is
    whole.
    """
    if context.invoked_subcommand is not None:
        return
    require("slipstream", "torch")
    given = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in sorted(context.params.items())
        if value is not None and value is not False  # a switch that is not given, which a file may set
    ]
    command = module_command("slipstream.cli.child", str(os.getpid()), "slipstream.distilling", *given)
    # In a group of its own a terminal's Ctrl-C reaches it once only, from here.
    with subprocess.Popen(command, process_group=0) as child:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: child.send_signal(number))
        status = child.wait()
    sys.exit(status if status >= 0 else 128 - status)
