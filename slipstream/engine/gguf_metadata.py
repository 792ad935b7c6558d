"""A fast reader of a GGUF file's keys. ``gguf.GGUFReader`` takes seconds for a large vocabulary."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_file import AGAIN, refuse_no_file

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct's format letters by GGUF's number of a fixed-size type."""
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_HEADER = struct.Struct("<4sIQQ")
_ALIGNMENT = 32
"""Bytes that a tensor's place is a multiple of, if no key says so."""
_Taken = TypeVar("_Taken")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as a header describes it."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """All that stands before a file's tensors."""

    keys: dict[str, Any]
    tensors: list[TensorInfo]
    data_start: int
    """Byte at which the first tensor begins."""


def read_metadata(path: Path) -> dict[str, Any]:
    """Return all keys with their values. UnsupportedModelError if the file is damaged or not a GGUF
    file."""
    return _read(path, lambda values, key_count, _: values.keys(key_count))


def read_header(path: Path) -> Header:
    """Return the keys, and the tensors without their values. UnsupportedModelError if the file is
    damaged or not a GGUF file."""
    return _read(path, _Values.header)


def _read(path: Path, take: Callable[[_Values, int, int], _Taken]) -> _Taken:
    refuse_no_file(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _, version, tensor_count, key_count = _HEADER.unpack_from(data, 0)
            if version not in _VERSIONS:
                raise UnsupportedModelError(f"{path} is a GGUF file of version {version}, not of 2 or 3: {AGAIN}")
            return take(_Values(data, _HEADER.size), key_count, tensor_count)
    except (struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        raise UnsupportedModelError(f"the keys of {path} cannot be read ({error!r}): {AGAIN}") from error


class _Values:
    """A reader of consecutive values."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data, self._at = data, at

    def keys(self, count: int) -> dict[str, Any]:
        return {self._string(): self._value(self._one("I")) for _ in range(count)}

    def header(self, key_count: int, tensor_count: int) -> Header:
        """Return the whole header. ``tensor_count`` tensors follow the keys."""
        keys = self.keys(key_count)
        tensors = []
        for _ in range(tensor_count):
            name, count = self._string(), self._one("I")
            tensors.append(TensorInfo(name, self._unpack(f"<{count}Q")))
            self._unpack("<IQ")  # the type and the place of its values
        alignment = keys.get("general.alignment", _ALIGNMENT)
        return Header(keys, tensors, -(-self._at // alignment) * alignment)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._one(_FORMATS[kind])
        kind, count = self._one("I"), self._one("Q")
        if kind == _ARRAY:
            raise ValueError("an array holds arrays")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        return list(self._unpack(f"<{count}{_FORMATS[kind]}"))

    def _string(self) -> str:
        size = self._one("Q")
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError("it ends within a string")
        return self._data[begin : self._at].decode()

    def _one(self, letter: str) -> Any:
        return self._unpack(f"<{letter}")[0]

    def _unpack(self, form: str) -> tuple[Any, ...]:
        begin, self._at = self._at, self._at + struct.calcsize(form)
        return struct.unpack_from(form, self._data, begin)
