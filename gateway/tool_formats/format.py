"""The interface of a format of tool calls: how calls are read, and how they are enforced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.parts import PartReader


class Function(NamedTuple):
    """A function that the model may call."""

    name: str
    schema: str
    """The JSON Schema of its arguments, as JSON text."""


class ToolFormat(Protocol):
    """A form in which models write calls of tools."""

    def reader(self) -> PartReader:
        """Return a reader for one answer. Text that only looks like a call is content."""

    def grammar(self, functions: Sequence[Function], *, parallel: bool) -> str:
        """Return a grammar, in Lark's notation, of a text that calls one of the functions, or with
        ``parallel`` one or several. The rule ``tool_N`` has the schema of function N."""


def grammar_of_calls(
    functions: Sequence[Function], *, opening: str, key: str, closing: str, separator: str | None
) -> str:
    """Return a grammar of calls. Each has a JSON object between ``opening`` and ``closing``, with
    its arguments under ``key``. ``separator`` None allows one call alone."""
    tools = [f"tool_{number}" for number in range(len(functions))]
    more = "" if separator is None else f" ({json.dumps(separator)} call)*"
    begin, end = json.dumps(opening + '{"name": '), json.dumps("}" + closing)
    rules = [f"start: call{more}", f"call: {begin} ({' | '.join(tools)}) {end}"]
    for tool, function in zip(tools, functions, strict=True):
        member = json.dumps(f'{json.dumps(function.name)}, "{key}": ')
        rules.append(f"{tool}: {member} %json {function.schema}")
    return "\n".join(rules)
