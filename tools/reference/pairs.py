"""The pairs page: known pairs of a target and a draft, from slipstream/hub/pairs.toml."""

from __future__ import annotations

from slipstream.hub.pairs import Pair, known_pairs
from tools.reference.markdown import cell, generated, table

_HEAD = """# Pairs

A pair is a large target and a small draft with the same tokenizer. `slipstream list` shows this
table too. Both services compare the tokenizers' fingerprints when they start, and refuse a pair
whose tokenizers differ. That these tokenizers are equal is what their publishers say: only the
embedded pair was loaded here.

A figure is a published one, with its source and its conditions. It comes from another engine and
other prompts, so expect another figure for yours: `slipstream bench` measures it. The cell is empty
where we found no source that can be cited.

"""


def page() -> str:
    """Return the page."""
    head = ["target", "draft", "licence", "acceptance", "measured with", "source"]
    return generated("slipstream/hub/pairs.toml") + _HEAD + table(head, map(_row, known_pairs()))


def _row(pair: Pair) -> list[str]:
    acceptance = "" if pair.acceptance is None else f"{pair.acceptance:.2f}"
    return [
        f"`{pair.target}`",
        f"`{pair.draft}`",
        cell(pair.licence),
        acceptance,
        cell(pair.conditions),
        _link(pair.source),
    ]


def _link(source: str) -> str:
    if not source or source.startswith("https:"):
        return f"<{source}>" if source else ""
    return f"[{source.rpartition('/')[2]}](../../{source})"
