"""Object schemas whose pattern leaves no key beside the named ones, written so that the library can follow them.

The library (1.9.1) takes named keys out of a pattern's. Where none is left it still allows a comma after the last key, and
then no token. Such a pattern is taken out here; the keys that it matches get its schema.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

_MOST_NAMES, _MOST_PATTERNS = 256, 32
"""Of an object that is looked at: each takes the library half a millisecond."""

_DATA = "const", "enum", "default", "examples"
"""What a schema holds that is no schema."""

_NAMED = "properties", "patternProperties", "$defs", "definitions"
"""What holds schemas by names."""


def with_keys_that_follow(schema: Any) -> Any:
    """The same schema, with every object's exhausted patterns moved to the keys that they match. RecursionError."""
    if isinstance(schema, list):
        return [with_keys_that_follow(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rewritten = {key: _inside(key, value) for key, value in schema.items()}
    patterns = rewritten.get("patternProperties")
    if isinstance(patterns, dict) and patterns:
        return _rewritten(rewritten, patterns)
    return rewritten


def _inside(key: str, value: Any) -> Any:
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: with_keys_that_follow(schema) for name, schema in value.items()}
    return with_keys_that_follow(value)


def _rewritten(schema: dict[str, Any], patterns: dict[str, Any]) -> dict[str, Any]:
    named, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list):
        return schema  # the library says what is wrong
    names = list(dict.fromkeys([*named, *(name for name in required if isinstance(name, str))]))
    if not names or len(names) > _MOST_NAMES or len(patterns) > _MOST_PATTERNS:
        return schema
    exhausted = [pattern for pattern in patterns if not _leaves_keys(pattern, names)]
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
    """Whether a pattern matches another key than these, or cannot be compiled, which is said elsewhere."""
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
    """Its tokens are bytes."""
    return LLTokenizer("byte")
