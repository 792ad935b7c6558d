"""The type of a call's metadata, which travels beside its messages."""

from __future__ import annotations

from typing import TypeAlias

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
"""Names and values. A name that ends with ``-bin`` has bytes."""
