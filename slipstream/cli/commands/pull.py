"""``slipstream pull``: a model's files from the hub into its cache."""

from __future__ import annotations

from typing import Annotated

import typer

from slipstream.cli.ending import progress, refusals
from slipstream.cli.terminal import argument_text
from slipstream.extras import require


def pull(
    repository: Annotated[
        str, typer.Argument(metavar="REPO[@REVISION]", help="hub id, with a branch, a tag or a commit if you like")
    ],
    gguf: Annotated[str | None, typer.Option(metavar="FILE", help="this GGUF file instead of safetensors")] = None,
) -> None:
    """Download what is served of a model into the hub's usual cache, and print where it is.

    Only safetensors or one GGUF file, tokenizer and configurations come. A lost connection is made
    again, and goes on where it was. After an interruption the files that are whole stay.

    slipstream pull HuggingFaceTB/SmolLM2-135M-Instruct

    slipstream pull bartowski/Qwen2.5-7B-Instruct-GGUF --gguf Qwen2.5-7B-Instruct-Q8_0.gguf
    """
    require("slipstream", "hub")
    from slipstream.hub.download import pull as download  # this import takes half a second

    with refusals(""):
        name, _, revision = argument_text(repository, "the repository").partition("@")
        with progress.status(f"asking the hub for {name}") as status:
            path = download(name, revision or None, gguf, status.update if progress.is_terminal else progress.print)
    typer.echo(path)
