"""A reader of a GGUF file's header. ``gguf.GGUFReader`` takes seconds for a large vocabulary, and
all memory for an array whose length is damaged."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slipstream.engine.errors import UnsupportedModelError

AGAIN = "copy, download or convert it again"
"""Advice for a damaged file."""

_MAGIC = b"GGUF"

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct's format letters by GGUF's number of a fixed-size type."""
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
_HEADER = struct.Struct("<4sIQQ")
_ALIGNMENT = 32
"""Bytes that a tensor's place is a multiple of, if no key says so."""
_Taken = TypeVar("_Taken")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as a header describes it."""

    name: str
    shape: tuple[int, ...]
    """Sizes, the innermost first."""
    type: int
    """GGUF's number of its type."""
    start: int
    """Byte at which its values begin, counted from the first tensor's."""

    @property
    def type_name(self) -> str:
        """The name of its type, such as Q4_K."""
        from gguf import GGMLQuantizationType  # of an extra

        try:
            return str(GGMLQuantizationType(self.type).name)
        except ValueError:
            return f"type {self.type}"


@dataclass(frozen=True, slots=True)
class Header:
    """All that stands before a file's tensors."""

    keys: dict[str, Any]
    tensors: list[TensorInfo]
    data_start: int
    """Byte at which the first tensor begins."""


def refuse_no_file(path: Path) -> None:
    """Raise UnsupportedModelError if there is not a GGUF file at ``path``."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise UnsupportedModelError(f"no GGUF file at {path}: {error.strerror}") from error
    if magic != _MAGIC:
        raise UnsupportedModelError(f"{path} is not a GGUF file: it begins with {magic!r}; {AGAIN}")


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
            if version % 2**16 == 0:
                raise UnsupportedModelError(f"{path} is a big-endian GGUF file: convert it to little-endian")
            if version not in _VERSIONS:
                raise UnsupportedModelError(f"{path} is a GGUF file of version {version}, not of 2 or 3: {AGAIN}")
            return take(_Values(data, _HEADER.size), key_count, tensor_count)
    except (struct.error, ValueError) as error:
        raise UnsupportedModelError(f"the keys of {path} cannot be read ({error}): {AGAIN}") from error


class _Values:
    """A reader of consecutive values."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data, self._at = data, at

    def keys(self, count: int) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        for _ in range(count):
            name = self._string()
            if name in keys:
                raise ValueError(f"it has {name} twice")
            keys[name] = self._value(self._one("I"))
        return keys

    def header(self, key_count: int, tensor_count: int) -> Header:
        """Return the whole header. ``tensor_count`` tensors follow the keys."""
        keys = self.keys(key_count)
        tensors = {tensor.name: tensor for tensor in (self._tensor() for _ in range(tensor_count))}
        if len(tensors) < tensor_count:
            raise ValueError("two of its tensors have one name")
        alignment = keys.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"its general.alignment is {alignment}, no power of two")
        return Header(keys, list(tensors.values()), -(-self._at // alignment) * alignment)

    def _tensor(self) -> TensorInfo:
        name, count = self._string(), self._one("I")
        shape = self._unpack(f"<{count}Q") if 0 < count <= _MOST_DIMENSIONS else ()
        if not all(shape) or not shape:
            raise ValueError(f"its {name} has the sizes {list(shape)}")
        return TensorInfo(name, shape, *self._unpack("<IQ"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._one(_format_of(kind))
        kind, count = self._one("I"), self._one("Q")
        if kind == _ARRAY:
            raise ValueError("an array holds arrays")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        return list(self._unpack(f"<{count}{_format_of(kind)}"))

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


def _format_of(kind: int) -> str:
    if kind not in _FORMATS:
        raise ValueError(f"a value is of type {kind}")
    return _FORMATS[kind]
