"""A call's metadata: what comes and goes beside its messages."""

from __future__ import annotations

from typing import TypeAlias

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
"""Names and values. A name that ends with ``-bin`` has bytes."""
