"""The package's extras, and the line that names those which a command needs and does not find."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_MARKS = {
    "compiled": ("numba", "safetensors", "tokenizers", "pydantic_settings"),
    "torch": ("torch", "transformers"),
    "distill": ("torch", "transformers", "peft"),
    "embedded": ("slipstream.embedded",),
    "orchestrator": ("jinja2", "pydantic_settings"),
    "gateway": ("fastapi", "pydantic_settings", "uvicorn"),
    "postgresql": ("psycopg",),
    "plot": ("matplotlib",),
    "hub": ("huggingface_hub",),
}
"""Packages that each extra installs; it is missing if one of them is."""


def require(program: str, *extras: str) -> None:
    """Exit with one line that says how to install the missing extras, if any are missing."""
    if line := missing(*extras):
        sys.exit(f"{program}: this needs packages that are not installed: {line}")


def missing(*extras: str) -> str:
    """Return the command that installs the missing extras; empty if none are missing."""
    absent = [extra for extra in extras if not all(map(find_spec, _MARKS[extra]))]
    return f"pip install 'slipstream-llm[{','.join(absent)}]'" if absent else ""
