"""Names of the files of a model that are read. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
"""Configurations, tokenizers and chat templates."""
CODE_FILES = ("*.py",)
WEIGHT_FILES = ("model*.safetensors",)
PICKLE_FILES = ("pytorch_model*.bin",)

_SHARD = re.compile(r"-\d{5}(-of-\d{5}\.gguf)$")


def gguf_files(file: str) -> Sequence[str]:
    """Return patterns of a GGUF model's files: the one named, and the other parts if it is one of
    several."""
    return [_SHARD.sub(r"-*\1", file)]
