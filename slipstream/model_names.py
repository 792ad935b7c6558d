"""Names of models: which of them can be a hub id, and which can only be a path."""

from __future__ import annotations

import re

_HUB_ID = re.compile(r"(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b", re.ASCII)
"""The hub's own rule, as in huggingface_hub's validators."""


def can_be_hub_id(name: str) -> bool:
    """Return False if a name can only be the path of a file or directory."""
    return _HUB_ID.fullmatch(name) is not None
