"""Tensors in safetensors files, read one at a time, and files of new ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import TensorSpec, serialize_file

from slipstream.engine.compiled.safetensors_file import rounded
from slipstream.engine.errors import UnsupportedModelError

_NUMBERS = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.uint8,
}
_FLOATS = ("F64", "F32", "F16", "BF16")


class Stored(NamedTuple):
    """A tensor in a file, which is read when it is asked for."""

    path: Path
    dtype: str
    """safetensors' name."""
    shape: tuple[int, ...]
    start: int

    def bits(self) -> np.ndarray:
        """Return the numbers as they are stored: bfloat16 as uint16, FP8 as uint8.
        UnsupportedModelError for a type that is not read."""
        if self.dtype not in _NUMBERS:
            raise UnsupportedModelError(f"{self.path.name} has numbers of type {self.dtype}, which are not read")
        if 0 in self.shape:  # nothing that could be mapped
            return np.empty(self.shape, _NUMBERS[self.dtype])
        return np.memmap(self.path, _NUMBERS[self.dtype], "r", self.start, self.shape or (1,)).reshape(self.shape)

    def numbers(self) -> np.ndarray:
        """Return floats as float32, and all else as it is stored."""
        bits = self.bits()
        if self.dtype == "BF16":
            return (bits.astype(np.uint32) << 16).view(np.float32)
        return bits.astype(np.float32) if self.dtype in _FLOATS else bits

    def as_bfloat16(self) -> np.ndarray:
        """Return the bits (uint16) of floats that are rounded to bfloat16."""
        if self.dtype not in _FLOATS:
            raise UnsupportedModelError(f"{self.path.name} has numbers of type {self.dtype} that make no weight")
        return self.bits() if self.dtype == "BF16" else rounded(self.numbers())


def stored_in(paths: list[Path]) -> dict[str, Stored]:
    """Return the tensors of files, whose headers were compared with the files' sizes before."""
    found = {}
    for path in paths:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, said in header.items():
            start = 8 + length + said["data_offsets"][0]
            found[name] = Stored(path, said["dtype"], tuple(said["shape"]), start)
    return found


class Writer:
    """Writes bfloat16 tensors into files of some size, and their index."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        """A file is written once its tensors have ``file_bytes`` bytes."""
        self._directory = directory
        self._file_bytes = file_bytes
        self._held: dict[str, np.ndarray] = {}
        self._where: dict[str, str] = {}
        self._total = 0

    def add(self, name: str, bits: np.ndarray) -> None:
        """Take a tensor, as the bits (uint16) of bfloat16."""
        self._held[name] = np.ascontiguousarray(bits)
        if sum(each.nbytes for each in self._held.values()) >= self._file_bytes:
            self._write()

    def finish(self) -> int:
        """Write what is held, and the index. Returns the bytes of all tensors."""
        if self._held:
            self._write()
        index = {"metadata": {"total_size": self._total}, "weight_map": self._where}
        (self._directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
        return self._total

    def _write(self) -> None:
        file = f"model-{len({*self._where.values()}) + 1:05}.safetensors"
        described = {
            name: TensorSpec(dtype="bfloat16", shape=each.shape, data_ptr=each.ctypes.data, data_len=each.nbytes)
            for name, each in self._held.items()
        }
        serialize_file(described, str(self._directory / file), {"format": "pt"})
        self._where |= dict.fromkeys(self._held, file)
        self._total += sum(each.nbytes for each in self._held.values())
        self._held = {}
