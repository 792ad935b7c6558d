"""Checks that every reader of GGUF files needs: all files of a model are there, and a fingerprint
names their content."""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.engine.checkpoint import some
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_metadata import AGAIN, read_header

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
"""llama.cpp's names of the files of a split model."""
_MOST_SHARDS = 99_999

_SAMPLES, _SAMPLE_BYTES = 1024, 64


def shards_of(path: Path) -> list[Path]:
    """Return all files of the model whose first file is at ``path``. UnsupportedModelError if one
    is missing or out of place.

    A file with the name of a part whose keys do not say so is a model by itself.
    """
    named = _SHARD.search(path.name)
    if named is None or (count := _part_of(path)[1]) < 2:
        return [path]
    place = int(named[1])
    paths = [
        path.with_name(f"{path.name[: named.start()]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)
    ]
    if place != 1:
        raise UnsupportedModelError(f"{path} is file {place} of {count}; give the first, {paths[0].name}")
    absent = [each.name for each in paths if not each.exists()]
    if absent:
        raise UnsupportedModelError(f"{path} lacks {len(absent)} of its {count} files: {some(absent)}; {AGAIN}")
    tensor_count = 0
    for number, each in enumerate(paths):
        found, of, total, own = _part_of(each)
        if (found, of) != (number, count):
            raise UnsupportedModelError(f"{each} says that it is file {found + 1} of {of}; {AGAIN}")
        tensor_count += own
    if tensor_count != total:
        raise UnsupportedModelError(f"{path} and its other files have {tensor_count} of {total} tensors; {AGAIN}")
    return paths


def _part_of(path: Path) -> tuple[int, int, int, int]:
    """Return a file's part number, counted from 0, the number of parts, the tensors of all parts,
    and its own."""
    header = read_header(path)
    said = [header.keys.get(f"split.{key}", 0) for key in ("no", "count", "tensors.count")]
    if not all(isinstance(each, int) for each in said) or said[1] > _MOST_SHARDS:
        raise UnsupportedModelError(f"the keys of its split in {path} are {', '.join(map(repr, said))}; {AGAIN}")
    return said[0], said[1], said[2], len(header.tensors)


def refuse_no_model(path: Path, general_type: Any) -> None:
    """Raise UnsupportedModelError if the file is not a model but, for example, an adapter."""
    if general_type not in (None, "", "model"):
        raise UnsupportedModelError(
            f"{path} is of general.type {general_type!r}, and only a 'model' can be served: merge an adapter into its model "
            "first"
        )


def fingerprint_of(paths: Sequence[Path], said: Sequence[str]) -> str:
    """Return the sha256 of the strings ``said`` and of each file's size, first MiB and many
    evenly spaced bytes. The strings say how the model is computed. A file's beginning holds all
    its keys."""
    digest = hashlib.sha256("\n".join(said).encode())
    for path in paths:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            digest.update(str(len(data)).encode() + data[: 2**20])
            for start in range(0, len(data), max(1, len(data) // _SAMPLES)):
                digest.update(data[start : start + _SAMPLE_BYTES])
    return digest.hexdigest()
