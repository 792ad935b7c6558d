"""Reads the tensors of safetensors files as arrays, without torch: bfloat16 as its bits (uint16).

A file is eight bytes of a header's length, the header in JSON, and the numbers of all tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from slipstream.engine.checkpoint import INDEX, WEIGHTS
from slipstream.sampling.blocks import floats_of

_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""safetensors' types of weights, and the arrays that hold their numbers or bits."""

_INTEGERS = {"I64": np.int64, "I32": np.int32, "BOOL": np.bool_}
"""Types of tensors that hold ids."""

_BFLOAT16_SHIFT = np.uint32(16)
_HALF = np.uint32(0x7FFF)

_COMPARED = 1 << 24
"""Bytes that are compared at once."""


class StoredTensor:
    """A tensor in a file, which is read when it is asked for."""

    def __init__(self, path: Path, kind: str, shape: tuple[int, ...], start: int) -> None:
        self.shape = shape
        self._path, self._kind, self._start = path, kind, start

    def read(self, dtype: str) -> np.ndarray:
        """Return the numbers as "float32", or as the bits of "bfloat16", rounded to the nearest."""
        values = self._stored()
        if self._kind == "BF16":
            return values if dtype == "bfloat16" else floats_of(values.view(np.int16))
        singles = values.astype(np.float32, copy=False)
        return rounded(singles) if dtype == "bfloat16" else singles

    def integers(self) -> np.ndarray:
        """Return the whole numbers of a tensor of ids, as int64."""
        return self._stored().astype(np.int64)

    @property
    def holds_integers(self) -> bool:
        """True if it is a tensor of ids."""
        return self._kind in _INTEGERS

    def has_bits_of(self, other: StoredTensor) -> bool:
        """Return True if another tensor has the same type, shape and bits."""
        if (self._kind, self.shape) != (other._kind, other.shape):
            return False
        ours, theirs = (tensor._stored().reshape(-1).view(np.uint8) for tensor in (self, other))
        starts = range(0, ours.size, _COMPARED)
        return all(
            np.array_equal(ours[start : start + _COMPARED], theirs[start : start + _COMPARED]) for start in starts
        )

    def _stored(self) -> np.ndarray:
        return np.memmap(self._path, (_TYPES | _INTEGERS)[self._kind], "r", self._start, self.shape)


def stored_tensors(directory: Path) -> dict[str, StoredTensor] | None:
    """Return the tensors of a directory's whole safetensors files by their names; None if one has a
    type that is not read here."""
    if (directory / WEIGHTS).exists():
        paths = {directory / WEIGHTS}
    else:
        index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        paths = {directory / str(file) for file in index["weight_map"].values()}
    found = tensors_in(paths)
    return None if found is None or any(tensor.holds_integers for tensor in found.values()) else found


def tensors_in(paths: Iterable[Path]) -> dict[str, StoredTensor] | None:
    """Return the tensors of whole safetensors files by their names, ids too; None if one has a type
    that is not read here."""
    found: dict[str, StoredTensor] = {}
    for path in sorted(paths):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, said in header.items():
            if name == "__metadata__":
                continue
            if said["dtype"] not in _TYPES | _INTEGERS:
                return None
            start = 8 + length + said["data_offsets"][0]
            found[name] = StoredTensor(path, said["dtype"], tuple(said["shape"]), start)
    return found


def rounded(singles: np.ndarray) -> np.ndarray:
    """Return the bits of float32 numbers as bfloat16 (uint16), rounded to the nearest, of two the
    even one. NaN stays NaN."""
    bits = np.ascontiguousarray(singles).view(np.uint32)
    halves = (bits + (_HALF + ((bits >> _BFLOAT16_SHIFT) & np.uint32(1)))) >> _BFLOAT16_SHIFT
    halves[np.isnan(singles)] = 0x7FC0
    return halves.astype(np.uint16)
