"""Object schemas whose pattern leaves no key beside the named ones, written so that the library can
follow them.

The library (1.9.1) takes named keys out of a pattern's. Where none is left it still allows a comma
after the last key, and then no token. Such a pattern is taken out here; the keys that it matches
get its schema.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from slipstream.sampling.structure_errors import InvalidStructureError

_MOST_CHECKS = 2000
"""Named keys times patterns, of all objects together. Each takes the library up to 0.2 ms."""

_BYTES_A_CHECK = 256
"""A longer pattern counts so many times more where it is compared with one key after another."""

_DATA = "const", "enum", "default", "examples"
"""Keys of a schema whose values are no schemas."""

_NAMED = "properties", "patternProperties", "$defs", "definitions"
"""Keys of a schema whose values are schemas by names."""


class _Checks:
    """Counts what one schema takes to be looked at."""

    def __init__(self) -> None:
        self._left = _MOST_CHECKS

    def take(self, count: int) -> None:
        """InvalidStructureError if that is more than are left."""
        self._left -= count
        if self._left < 0:
            raise InvalidStructureError(
                f"must compare at most {_MOST_CHECKS:,} pairs of a named key and a pattern of patternProperties, in all "
                "objects together: use fewer keys, or fewer and shorter patterns"
            )


def with_keys_that_follow(schema: Any) -> Any:
    """The same schema, with every object's exhausted patterns moved to the keys that they match.

    InvalidStructureError if that takes too many comparisons; RecursionError.
    """
    return _followed(schema, _Checks())


def _followed(schema: Any, checks: _Checks) -> Any:
    if isinstance(schema, list):
        return [_followed(item, checks) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rewritten = {key: _inside(key, value, checks) for key, value in schema.items()}
    patterns = rewritten.get("patternProperties")
    if isinstance(patterns, dict) and patterns:
        return _rewritten(rewritten, patterns, checks)
    return rewritten


def _inside(key: str, value: Any, checks: _Checks) -> Any:
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: _followed(schema, checks) for name, schema in value.items()}
    return _followed(value, checks)


def _rewritten(schema: dict[str, Any], patterns: dict[str, Any], checks: _Checks) -> dict[str, Any]:
    named, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list):
        return schema  # the library says what is wrong
    names = list(dict.fromkeys([*named, *(name for name in required if isinstance(name, str))]))
    if not names:
        return schema
    checks.take(len(names) * len(patterns))
    exhausted = [pattern for pattern in patterns if not _leaves_keys(pattern, names)]
    checks.take(sum(len(names) * (len(pattern.encode()) // _BYTES_A_CHECK) for pattern in exhausted))
    if not exhausted:
        return schema
    merged = dict(named)
    for pattern in exhausted:
        for name in (name for name in names if _matches(pattern, name)):
            merged[name] = {"allOf": [merged[name], patterns[pattern]]} if name in merged else patterns[pattern]
    left = {pattern: value for pattern, value in patterns.items() if pattern not in exhausted}
    rest = {key: value for key, value in schema.items() if key != "patternProperties"}
    return rest | {"properties": merged} | ({"patternProperties": left} if left else {})


def _leaves_keys(pattern: str, names: Sequence[str]) -> bool:
    """Return True if a pattern matches another key than these, or cannot be compiled, which another
    check reports."""
    state = _state(
        {
            "type": "object",
            "properties": dict.fromkeys(names, False),
            "patternProperties": {pattern: {}},
            "additionalProperties": False,
            "minProperties": 1,
            "x-guidance": {"whitespace_flexible": False},
        }
    )
    return state.is_error() or not state.consume_tokens(list(b"{")) or _can_go_on(state)


def _matches(pattern: str, name: str) -> bool:
    state = _state({"allOf": [{"const": name}, {"type": "string", "pattern": pattern}]})
    return not state.is_error() and _can_go_on(state)


def _state(schema: dict[str, Any]) -> LLMatcher:
    return LLMatcher(_tokenizer(), json.dumps({"grammars": [{"json_schema": schema}]}), log_level=0)


def _can_go_on(state: LLMatcher) -> bool:
    mask = np.frombuffer(state.compute_bitmask(), np.uint8)
    return not state.is_error() and bool(np.unpackbits(mask, bitorder="little")[:256].any())


@functools.cache
def _tokenizer() -> LLTokenizer:
    """Return a tokenizer whose tokens are bytes."""
    return LLTokenizer("byte")
