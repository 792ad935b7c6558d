"""The package's extras: which of them a command needs, and what to say where one is not
installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_MARKS = {
    "compiled": ("numba", "safetensors", "tokenizers", "pydantic_settings"),
    "torch": ("torch", "transformers"),
    "orchestrator": ("jinja2", "pydantic_settings"),
    "postgresql": ("psycopg",),
}
"""By extra, packages that are there once it is installed."""


def require(program: str, *extras: str) -> None:
    """Exit with one line that says how to install those of the extras that are not, unless all
    are."""
    if line := missing(*extras):
        sys.exit(f"{program}: this needs packages that are not installed: {line}")


def missing(*extras: str) -> str:
    """Return the command that installs those of the extras that are not installed, empty if all
    are."""
    absent = [extra for extra in extras if not all(map(find_spec, _MARKS[extra]))]
    return f"pip install 'slipstream-llm[{','.join(absent)}]'" if absent else ""
