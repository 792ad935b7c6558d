"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[
    str, typer.Option(help="target model: a directory, a hub id, a .gguf file, 'embedded' or 'arithmetic:...'")
]
Draft = Annotated[str, typer.Option(help="draft model, likewise; empty for none")]
Device = Annotated[str, typer.Option(help="torch device of both models")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32")]
DraftLength = Annotated[int | None, typer.Option(help="draft tokens a round; 0 is off; default: the server's")]
