"""A merged tree as the text of a template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from tools.chart.merging import ABSENT, Either, Node, When


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar that is written as it is: an expression in double braces, or text around one."""

    text: str


@dataclass(frozen=True, slots=True)
class Structure:
    """A mapping or a list that an expression gives."""

    expression: str


@dataclass(frozen=True, slots=True)
class Given:
    """A node that is there only if the user gives it a value."""

    expression: str


@dataclass(frozen=True, slots=True)
class GivenOr:
    """A scalar that the user may replace, or give where the node is `ABSENT`."""

    expression: str
    node: Node


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a template, indented as the place needs."""

    lines: tuple[str, ...]


_CONDITIONAL = (When, Either, Given, GivenOr)


def write(node: Node) -> str:
    """Return the text of an object."""
    return "\n".join(_keys(node, 0)) + "\n"


def condition(components: tuple[str, ...], negated: bool = False) -> str:
    """Return an expression that is true if one of the components is on."""
    said = [f".Values.{name}.enabled" for name in components]
    any_of = said[0] if len(said) == 1 else f"or {' '.join(said)}"
    return any_of if not negated else f"not {any_of}" if len(said) == 1 else f"not ({any_of})"


def literal(text: str) -> str:
    """Return a string of a template's language."""
    return json.dumps(text, ensure_ascii=False)


def _keys(tree: dict[str, Node], depth: int) -> Iterator[str]:
    for key, node in tree.items():
        yield from _key(key, node, depth)


def _key(key: str, node: Node, depth: int) -> Iterator[str]:
    space = "  " * depth
    match node:
        case When(components, inner, negated):
            yield f"{space}{{{{- if {condition(components, negated)} }}}}"
            yield from _key(key, inner, depth)
            yield f"{space}{{{{- end }}}}"
        case Either(cases, otherwise):
            for index, (component, inner) in enumerate(cases):
                yield f"{space}{{{{- {'else ' if index else ''}if {condition((component,))} }}}}"
                yield from _key(key, inner, depth)
            yield f"{space}{{{{- else }}}}"
            yield from _key(key, otherwise, depth)
            yield f"{space}{{{{- end }}}}"
        case Given(expression):
            yield f"{space}{{{{- with {expression} }}}}"
            yield f"{space}{key}:"
            yield f"{space}  {{{{- toYaml . | nindent {2 * depth + 2} }}}}"
            yield f"{space}{{{{- end }}}}"
        case GivenOr(expression, inner):
            yield f"{space}{{{{- with {expression} }}}}"
            yield f"{space}{key}: {{{{ . }}}}"
            if inner is not ABSENT:
                yield f"{space}{{{{- else }}}}"
                yield from _key(key, inner, depth)
            yield f"{space}{{{{- end }}}}"
        case Structure(expression):
            yield f"{space}{key}:"
            yield f"{space}  {{{{- toYaml {expression} | nindent {2 * depth + 2} }}}}"
        case Lines(lines):
            yield f"{space}{key}:"
            yield from (f"{space}  {line}" for line in lines)
        case dict() if node:
            yield f"{space}{key}:"
            yield from _keys(node, depth + 1)
        case list() if node:
            yield f"{space}{key}:"
            yield from (line for item in node for line in _item(item, depth + 1))
        case _:
            yield f"{space}{key}: {_scalar(node)}"


def _item(node: Node, depth: int) -> Iterator[str]:
    space = "  " * depth
    match node:
        case When(components, inner, negated):
            yield f"{space}{{{{- if {condition(components, negated)} }}}}"
            yield from _item(inner, depth)
            yield f"{space}{{{{- end }}}}"
        case Given(expression):
            yield f"{space}{{{{- with {expression} }}}}"
            yield f"{space}{{{{- toYaml . | nindent {2 * depth} }}}}"
            yield f"{space}{{{{- end }}}}"
        case dict() if node:
            always_first = sorted(node.items(), key=lambda entry: isinstance(entry[1], _CONDITIONAL))
            first, *others = _keys(dict(always_first), depth + 1)
            yield f"{space}- {first.strip()}"
            yield from others
        case list():
            raise ValueError("a list in a list has no form here")
        case _:
            yield f"{space}- {_scalar(node)}"


def _scalar(node: Node) -> str:
    """Return a scalar, or an empty collection, on one line."""
    if isinstance(node, Text):
        return node.text
    if isinstance(node, str) and "{{" in node:
        return f"{{{{ {literal(node)} | toJson }}}}"
    if isinstance(node, str) and "\n" not in node:
        plain = yaml.safe_dump(node, width=10**6, default_flow_style=True).removesuffix("\n...\n").strip()
        return plain if yaml.safe_load(plain) == node and ": " not in plain else literal(node)
    return json.dumps(node, ensure_ascii=False)
