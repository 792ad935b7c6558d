"""Hooks of Schemathesis, in whose environment they run."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

_MOST_TOKENS = 8


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Name the served model, which no schema can tell, and keep answers short."""
    if isinstance(case.body, dict):
        if isinstance(case.body.get("model"), str):
            case.body["model"] = os.environ["SERVED_MODEL"]
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], _MOST_TOKENS)
