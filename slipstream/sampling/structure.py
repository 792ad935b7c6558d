"""Structures that a turn's text must follow: a JSON schema, a regex, some choices or a grammar.
They are pure data and are checked elsewhere.

slipstream.sampling.structure_compiler gives it its meaning; this module is safe to import
everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MAX_SOURCE_BYTES = 64 * 1024
"""Longest source accepted, in UTF-8. Compiling needs time, memory and stack in proportion."""

MAX_GRAMMAR_BYTES = 16 * 1024
"""Longest source of a grammar, its JSON schemas left out."""

MAX_REGEX_BYTES = 4 * 1024
"""Longest regex, all regexes of a schema together, or one definition of a grammar with the
terminals in it: they need memory by their square."""


class StructureKind(Enum):
    """The language of a structure's source. All of them describe the whole text of a turn.

    ``JSON_SCHEMA``: a schema of draft 2020-12 (4 to 2019-09 by ``$schema``); keywords that cannot
    be enforced are refused. ``REGEX``: Rust's regex syntax, Unicode, without look-around and
    backreferences; it matches from start to end. ``CHOICE``: a JSON array of strings. ``GRAMMAR``:
    llguidance's Lark dialect, text only: no special tokens, no ``%llguidance`` options, no
    ``max_tokens``, no ``stop``. ``%json`` and a JSON Schema is what `JSON_SCHEMA` allows.
    """

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Structure:
    """A structure that the text of a turn must follow. Two structures are equal if their sources
    are, to the letter."""

    kind: StructureKind
    source: str

    @classmethod
    def of_choices(cls, choices: Sequence[str]) -> Structure:
        """One of these texts, exactly."""
        return cls(StructureKind.CHOICE, json.dumps(list(choices), ensure_ascii=False))
