"""What every reader of GGUF files wants of them: that there is one, and what names its content."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from pathlib import Path

from slipstream.engine.errors import UnsupportedModelError

_MAGIC = b"GGUF"
_SAMPLES, _SAMPLE_BYTES = 1024, 64

AGAIN = "copy, download or convert it again"
"""What to do about a file that is damaged."""


def refuse_no_file(path: Path) -> None:
    """UnsupportedModelError if there is no GGUF file at ``path``."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise UnsupportedModelError(f"no GGUF file at {path}: {error.strerror}") from error
    if magic != _MAGIC:
        raise UnsupportedModelError(f"{path} is no GGUF file: it begins with {magic!r}; {AGAIN}")


def fingerprint_of(path: Path, said: Sequence[str]) -> str:
    """sha256 over what is ``said`` of how it is computed, the file's size, its beginning, which says everything but the
    weights, and many evenly spaced bytes of those."""
    digest = hashlib.sha256("\n".join(said).encode())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        digest.update(str(len(data)).encode() + data[: 2**20])
        for start in range(0, len(data), max(1, len(data) // _SAMPLES)):
            digest.update(data[start : start + _SAMPLE_BYTES])
    return digest.hexdigest()
