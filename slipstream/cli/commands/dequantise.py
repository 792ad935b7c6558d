"""``slipstream dequantise``: a plain checkpoint of a quantised one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from slipstream.cli.ending import progress, refusals
from slipstream.cli.terminal import argument_text
from slipstream.extras import require
from slipstream.home import expanded


def dequantise(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="directory or hub id of a quantised checkpoint")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="new folder for the plain checkpoint")],
) -> None:
    """Write a quantised checkpoint with plain bfloat16 weights, which every engine serves.

    FP8 (fp8, fbgemm_fp8), compressed-tensors, GPTQ, AWQ, MXFP4 (gpt-oss) and bitsandbytes are read.
    The folder takes two bytes a weight. The weights are those of the quantised model, rounded to
    bfloat16; its activations are not quantised.

    slipstream dequantise Qwen/Qwen3-8B-FP8 --out models/qwen3-8b
    """
    require("slipstream", "compiled")
    from slipstream.dequantising.conversion import dequantise as write  # this import takes half a second

    name = argument_text(model, "the model")
    with refusals(""), Progress(console=progress, transient=True) as bar:
        task = bar.add_task("tensors", total=None)
        written = write(name, expanded(out), lambda done, count: bar.update(task, completed=done, total=count))
    typer.echo(
        f"{out}: {written / 2**30:.2f} GiB in bfloat16. Serve it: {shlex.join(['slipstream', 'serve', str(out)])}"
    )
