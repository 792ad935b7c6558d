"""JSON schemas within a grammar: ``%json {...}``.

They are taken out, so that they are checked, limited and written like any other schema, and the
grammar refers to them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from slipstream.sampling.structure_errors import InvalidStructureError

LARK_TOKEN = re.compile(
    r"""(?P<comment> //[^\n]* | \#[^\n]* )
      | (?P<literal> "(?:\\.|[^"\\\n])*" | /(?:\\.|[^/\\\n])+/ )
      | (?P<refused> <[^>\s]*>? | %llguidance\b )
      | (?P<json> %json\s* )
      | (?P<name> [A-Za-z_]\w* ) (?P<defined> [^\S\n]* (?:\[[^\]\n]*\])? [^\S\n]* : (?!:) )?""",
    re.VERBOSE,
)
"""The tokens of a grammar that its checks look at."""


@dataclass(frozen=True, slots=True)
class EmbeddedSchema:
    """A schema that stood in a grammar."""

    name: str
    """Name by which the grammar refers to it."""
    rule: str
    """Name of the rule in which it stood."""
    schema: Any


def without_schemas(source: str) -> tuple[str, list[EmbeddedSchema]]:
    """Return a grammar with a reference in the place of each schema, and the schemas.

    What follows ``%json`` and is no JSON stays: the library says what is wrong.
    InvalidStructureError if a schema has too many levels.
    """
    pieces: list[str] = []
    schemas: list[EmbeddedSchema] = []
    taken = at = 0
    rule = ""
    while found := LARK_TOKEN.search(source, at):
        at = found.end()
        if found["defined"]:
            rule = found["name"]
        elif found["json"]:
            try:
                schema, at = json.JSONDecoder().raw_decode(source, at)
            except RecursionError as error:
                raise InvalidStructureError("must be JSON of fewer levels", rule) from error
            except ValueError:
                continue
            schemas.append(EmbeddedSchema(f"json_{len(schemas)}", rule, schema))
            pieces.append(f"{source[taken : found.start()]}@{schemas[-1].name} ")
            taken = at
    return "".join([*pieces, source[taken:]]), schemas
