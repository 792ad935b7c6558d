"""``slipstream list``: models in the hub's cache, and pairs that are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from slipstream.cli.ending import progress
from slipstream.cli.output import output
from slipstream.extras import missing
from slipstream.hub.pairs import Pair, known_pairs

if TYPE_CHECKING:
    from slipstream.hub.cached import CachedModel


def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead, for a program")] = False,
) -> None:
    """Show the models in the hub's cache here, and pairs of a target and a draft.

    The sizes are those on this disk. An engine is named by the files' headers; a service says the
    last word when it starts.

    For a script: slipstream list --json
    """
    models = _cached()
    pairs = known_pairs()
    if as_json:
        found = None if models is None else [asdict(model) for model in models]
        typer.echo(json.dumps({"models": found, "pairs": [asdict(pair) for pair in pairs]}))
        return
    console = output()
    if models:
        console.print(_model_table(models))
    elif models is not None:
        progress.print("no models in the hub's cache; slipstream pull brings one", style="dim")
    console.print(_pair_table(pairs))
    for number, pair in enumerate(filter(lambda pair: pair.source, pairs), start=1):
        console.print(f"[{number}] {pair.conditions}; {pair.source}", markup=False, soft_wrap=True)


def _cached() -> Sequence[CachedModel] | None:
    """Return the models in the cache; None, with a remark, if the packages that read it are not
    installed."""
    if line := missing("hub", "compiled"):
        progress.print(f"models in the hub's cache are not listed: {line}", style="dim", markup=False, soft_wrap=True)
        return None
    from slipstream.hub.cached import cached_models  # this import takes a second

    return cached_models()


def _model_table(models: Sequence[CachedModel]) -> Table:
    table = Table(title="models in the cache")
    table.add_column("name", overflow="fold")
    for column in ("revision", "size", "kind", "engine"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for model in models:
        size = f"{model.byte_count / 1e9:.2f} GB" if model.byte_count >= 1e9 else f"{model.byte_count / 1e6:.1f} MB"
        engine = f"{model.served_by}, as a draft" if model.draft_only else model.served_by
        table.add_row(model.name, model.revision, size, model.kind, engine or f"none: {model.refusal}")
    return table


def _pair_table(pairs: Sequence[Pair]) -> Table:
    table = Table(title="pairs of one tokenizer")
    for column in ("target", "draft", "licence", "acceptance"):
        table.add_column(column, justify="right" if column == "acceptance" else "left", overflow="fold")
    sourced = [pair for pair in pairs if pair.source]
    for pair in pairs:
        acceptance = "" if pair.acceptance is None else f"{pair.acceptance:.2f} \\[{sourced.index(pair) + 1}]"
        table.add_row(pair.target, pair.draft, pair.licence, acceptance)
    return table
