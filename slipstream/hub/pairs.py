"""Pairs of a target and a draft with the same tokenizer, from ``pairs.toml``. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair, and what its authors or others have published about it."""

    target: str
    draft: str
    licence: str
    acceptance: float | None = None
    """Accepted draft tokens as a share of all; None if no source was found."""
    conditions: str = ""
    """Conditions under which the acceptance was measured."""
    source: str = ""
    """Address of the page that has it, or a file of the repository."""


def known_pairs() -> Sequence[Pair]:
    """Return all pairs."""
    content = Path(__file__).with_name("pairs.toml").read_text(encoding="utf-8")
    return [Pair(**entry) for entry in tomllib.loads(content)["pair"]]
