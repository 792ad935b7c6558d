"""Hooks of Schemathesis, in whose environment they run.

No schema can tell which names, token ids and structures there are, or which fields exclude each
other. So a request that should be right would almost never be: the hooks leave it one optional
field, and mend what they know. Wrong requests stay as they are.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import schemathesis

_MOST_TOKENS = 8
_TOKEN = 70
_REQUIRED = {"model", "messages", "prompt", "input"}
_MENDED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "input": "Hi",
    "stop": ["x"],
    "stop_token_ids": [_TOKEN],
    "allowed_token_ids": [_TOKEN],
    "logit_bias": {str(_TOKEN): 1},
    "structured_outputs": {"regex": "[ab]"},
    "guided_json": {"type": "integer"},
    "guided_regex": "[ab]",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'start: "a"',
    "response_format": {"type": "json_object"},
    "prediction": {"type": "content", "content": "Hello"},
    "stream_options": {"include_usage": True},
    "speculation": 2,
}
"""Right values of fields that have few."""
_BESIDE: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "include_stop_str_in_output": {"stop": "x"},
}
"""Fields that others need."""
_BOUNDS = {"max_tokens": _MOST_TOKENS, "max_completion_tokens": _MOST_TOKENS, "max_output_tokens": _MOST_TOKENS}
_UNKNOWN = {"tools", "tool_choice", "previous_response_id", "conversation", "chat_template_kwargs", "max_tokens"}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Name the served model, keep answers short, and mend a request that should be right."""
    body = case.body
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return
    body["model"] = os.environ["SERVED_MODEL"]
    for name, most in _BOUNDS.items():
        if isinstance(body.get(name), int):
            body[name] = min(body[name], most)
    if case.meta is not None and case.meta.generation.mode.value == "positive":
        case.body = _mended(body)


def _mended(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request with one of its optional fields."""
    kept = {name: _MENDED.get(name, value) for name, value in body.items() if name in _REQUIRED}
    if "prompt" in kept:
        kept["prompt"] = kept["prompt"] if isinstance(kept["prompt"], str) and kept["prompt"] else [_TOKEN]
    optional = sorted(name for name in body if name not in _REQUIRED | _UNKNOWN)
    if optional:
        name = optional[zlib.crc32(json.dumps(body, sort_keys=True, default=str).encode()) % len(optional)]
        value = body[name]
        kept |= _BESIDE.get(name, {}) | {name: value if value is None else _MENDED.get(name, value)}
    return {"max_tokens": _MOST_TOKENS, **kept} if "input" not in kept else kept
