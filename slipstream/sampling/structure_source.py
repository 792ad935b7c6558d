"""A structure's source, checked and written as the grammars that llguidance takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

from llguidance import regex_to_lark

from slipstream.sampling.grammar_schemas import LARK_TOKEN, EmbeddedSchema, without_schemas
from slipstream.sampling.structure import MAX_GRAMMAR_BYTES, MAX_REGEX_BYTES, MAX_SOURCE_BYTES, Structure, StructureKind
from slipstream.sampling.structure_errors import InvalidStructureError
from slipstream.sampling.structure_keys import with_keys_that_follow

# The library's default is any amount of blank space, and a model that does not know how to go on
# fills its turn with it. This allows what JSON is written like: on one line, or one item a line,
# indented.
_JSON_WHITESPACE = r"( |\n[ \t]{0,20})"

# Without this, forced bytes allow only their canonical tokens: masks would depend on the
# tokenization before.
_TOP = '%llguidance {"no_forcing": true}\nstart: @structure\n'

_HALF_A_PAIR = "must be Unicode text, but has half a surrogate pair"


def grammar_of(structure: Structure) -> str:
    """The structure as the library's list of grammars, in JSON. InvalidStructureError if it is not
    well formed."""
    source = structure.source
    checked_length(structure)
    body: dict[str, Any]
    embedded: list[dict[str, Any]] = []
    match structure.kind:
        case StructureKind.JSON_SCHEMA:
            body = {"json_schema": _schema(_json(source))}
        case StructureKind.REGEX:
            _check_regexes([source])
            body = {"lark_grammar": f"start: /{regex_to_lark(source)}/"}
        case StructureKind.CHOICE:
            body = {"lark_grammar": f"start: /{'|'.join(_escaped(choice) for choice in _choices(source))}/"}
        case StructureKind.GRAMMAR:
            lark, schemas = without_schemas(source)
            _check_lark(lark)
            _check_regexes(pattern for schema in schemas for pattern in _patterns(schema.schema))
            body = {"lark_grammar": lark}
            embedded = [{"name": schema.name, "json_schema": _embedded(schema)} for schema in schemas]
    try:
        return json.dumps({"grammars": [{"lark_grammar": _TOP}, {"name": "structure", **body}, *embedded]})
    except RecursionError as error:
        raise InvalidStructureError("must be JSON of fewer levels") from error


def checked_length(structure: Structure, most_bytes: int = MAX_SOURCE_BYTES) -> int:
    """The bytes of a structure's source. InvalidStructureError if they are too many, or if it is no
    Unicode text."""
    try:
        length = len(structure.source.encode())
    except UnicodeEncodeError as error:
        raise InvalidStructureError(_HALF_A_PAIR) from error
    if length > most_bytes:
        raise InvalidStructureError(
            f"must have at most {most_bytes} bytes (--structure-source-bytes), but has {length}"
        )
    if structure.kind is StructureKind.GRAMMAR and length > MAX_GRAMMAR_BYTES:
        rules = len(without_schemas(structure.source)[0].encode())
        if rules > MAX_GRAMMAR_BYTES:
            raise InvalidStructureError(
                f"must have at most {MAX_GRAMMAR_BYTES} bytes beside its JSON schemas, but has {rules}"
            )
    return length


def embedded_schemas(structure: Structure) -> list[tuple[str, str]]:
    """Return for each JSON schema within a grammar its rule, and a list of grammars, as of
    `grammar_of`, for it alone. InvalidStructureError as from `grammar_of`."""
    schemas = without_schemas(structure.source)[1] if structure.kind is StructureKind.GRAMMAR else []
    return [(schema.rule, json.dumps({"grammars": [{"json_schema": _embedded(schema)}]})) for schema in schemas]


def _embedded(embedded: EmbeddedSchema) -> dict[str, Any] | bool:
    try:
        return _schema(embedded.schema)
    except InvalidStructureError as error:
        raise InvalidStructureError(error.violations[0].description, embedded.rule) from error


def _schema(schema: Any) -> dict[str, Any] | bool:
    if isinstance(schema, bool):
        if not schema:
            return schema  # which the library refuses in better words
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidStructureError("must be a JSON schema, an object or a boolean")
    if "x-guidance" in schema:  # it may switch off what it cannot enforce
        raise InvalidStructureError("must not have x-guidance, which is no part of JSON Schema")
    try:
        _check_regexes(_patterns(schema))
        followed: dict[str, Any] = with_keys_that_follow(schema)
    except RecursionError as error:
        raise InvalidStructureError("must be JSON of fewer levels") from error
    return followed | {"x-guidance": {"whitespace_pattern": _JSON_WHITESPACE}}


def _choices(source: str) -> list[str]:
    choices = _json(source)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise InvalidStructureError("must be a JSON array of strings, at least one")
    return choices


def _json(source: str) -> Any:
    """Parse a source of JSON. An escape of half a surrogate pair is JSON, but no text can have
    it."""
    try:
        value = json.loads(source)
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise InvalidStructureError(_HALF_A_PAIR) from error
    except ValueError as error:
        raise InvalidStructureError(f"must be JSON: {error}") from error
    except RecursionError as error:
        raise InvalidStructureError("must be JSON of fewer levels") from error


def _escaped(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _check_regexes(regexes: Iterable[str]) -> None:
    """The library's time and memory are quadratic in one regex: 8,000 times ``a?`` take 290 MB,
    30,000 take 3.5 GB."""
    length = sum(len(regex.encode()) for regex in regexes)
    if length > MAX_REGEX_BYTES:
        raise InvalidStructureError(f"must have regexes of at most {MAX_REGEX_BYTES} bytes in all, but has {length}")


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _patterns(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str):
                yield value
            elif key == "patternProperties" and isinstance(value, dict):
                yield from value
            yield from _patterns(value)


def _check_lark(source: str) -> None:
    """Text alone, and no terminal that is too long a regex with all it refers to: 40 lines can
    double one 40 times."""
    own: dict[str, int] = {"": 0}
    refers: dict[str, list[str]] = {"": []}
    current = ""
    for found in LARK_TOKEN.finditer(source):
        if found["refused"]:
            line = source.count("\n", 0, found.start()) + 1
            raise InvalidStructureError(f"must describe text alone, but has {found['refused'][:80]} in line {line}")
        if found["literal"] == '"x-guidance"':
            raise InvalidStructureError("must not have x-guidance, which is no part of JSON Schema")
        if found["defined"]:
            current = found["name"]
            own.setdefault(current, 0)
            refers.setdefault(current, [])
        elif found["literal"]:
            own[current] += len(found["literal"].encode())
        elif found["name"] and found["name"].isupper():
            refers[current].append(found["name"])
            own[current] += 1
    try:
        order = list(TopologicalSorter(refers).static_order())
    except CycleError:
        return  # the library says where
    for name in order:
        own[name] = own.get(name, 0) + sum(own[other] for other in refers.get(name, ()))
        if own[name] > MAX_REGEX_BYTES:
            raise InvalidStructureError(f"must have at most {MAX_REGEX_BYTES} bytes of literals in {name or 'all'}")
