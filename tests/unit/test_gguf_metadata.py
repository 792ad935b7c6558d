"""A GGUF file's keys are read, or the file is refused by name, however damaged they are."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_metadata import read_metadata

_STRING, _ARRAY, _UINT8 = 8, 9, 0


def written(path: Path, value: bytes) -> Path:
    """A file with one key, ``x``."""
    path.write_bytes(struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1) + b"x" + value)
    return path


def an_array(kind: int, count: int, rest: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + rest


def test_arrays_of_numbers_and_of_strings_are_read(tmp_path: Path) -> None:
    head = struct.pack("<I", _ARRAY)
    assert read_metadata(written(tmp_path / "a.gguf", head + an_array(_UINT8, 3, b"\1\2\3"))) == {"x": [1, 2, 3]}
    text = struct.pack("<Q", 2) + b"hi"
    assert read_metadata(written(tmp_path / "b.gguf", head + an_array(_STRING, 2, text * 2))) == {"x": ["hi", "hi"]}


@pytest.mark.parametrize("depth", [1, 2000])
def test_an_array_inside_an_array_is_refused_however_deep(depth: int, tmp_path: Path) -> None:
    value = struct.pack("<I", _ARRAY) + an_array(_ARRAY, 1) * depth + an_array(_UINT8, 1, b"\1")
    with pytest.raises(UnsupportedModelError, match="an array holds arrays"):
        read_metadata(written(tmp_path / "x.gguf", value))


@pytest.mark.parametrize("kind", [_STRING, _ARRAY, _UINT8, 6])
def test_an_array_that_states_more_than_the_file_holds_is_refused(kind: int, tmp_path: Path) -> None:
    value = struct.pack("<I", _ARRAY) + an_array(kind, 2**40, b"\1" * 40)
    with pytest.raises(UnsupportedModelError, match=r"x\.gguf"):
        read_metadata(written(tmp_path / "x.gguf", value))
