"""A GGUF file's keys are read, or the file is refused by name, however damaged they are."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_metadata import TensorInfo, read_header, read_metadata

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


def a_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def a_tensor(name: str, *shape: int) -> bytes:
    """Its header; the values are float32 and begin at 64."""
    return a_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 64)


def a_file(path: Path, keys: bytes = b"", key_count: int = 0, tensors: tuple[bytes, ...] = ()) -> Path:
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), key_count) + keys + b"".join(tensors))
    return path


def a_number(key: str, value: int) -> bytes:
    return a_string(key) + struct.pack("<II", 4, value)


def test_a_header_says_what_the_tensors_are_and_where_they_begin(tmp_path: Path) -> None:
    path = a_file(tmp_path / "x.gguf", a_number("general.alignment", 128), 1, (a_tensor("a", 3, 5),))
    header = read_header(path)
    assert header.tensors == [TensorInfo("a", (3, 5), 0, 64)]
    assert header.tensors[0].type_name == "F32"
    assert header.data_start % 128 == 0 < header.data_start - path.stat().st_size < 128


@pytest.mark.parametrize("alignment", [0, 3, 2**32 - 1])
def test_an_alignment_that_is_no_power_of_two_is_refused(alignment: int, tmp_path: Path) -> None:
    path = a_file(tmp_path / "x.gguf", a_number("general.alignment", alignment), 1)
    with pytest.raises(UnsupportedModelError, match=f"general.alignment is {alignment}, no power of two"):
        read_header(path)


def test_a_key_or_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="it has x twice"):
        read_metadata(a_file(tmp_path / "a.gguf", a_number("x", 1) + a_number("x", 2), 2))
    with pytest.raises(UnsupportedModelError, match="two of its tensors have one name"):
        read_header(a_file(tmp_path / "b.gguf", tensors=(a_tensor("a", 2), a_tensor("a", 2))))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,) * 5, (2,) * 1000])
def test_sizes_that_no_tensor_has_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="its a has the sizes"):
        read_header(a_file(tmp_path / "x.gguf", tensors=(a_tensor("a", *shape),)))


def test_a_big_endian_file_is_refused_by_that_name(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(struct.pack(">4sIQQ", b"GGUF", 3, 0, 0))
    with pytest.raises(UnsupportedModelError, match="is a big-endian GGUF file: convert it to little-endian"):
        read_metadata(path)


def test_damaged_text_and_types_are_named_in_a_short_line(tmp_path: Path) -> None:
    no_text = struct.pack("<IQ", _STRING, 5000) + b"\xff" * 5000
    for value, said in ((no_text, "can't decode byte 0xff"), (struct.pack("<IQ", 13, 0), "a value is of type 13")):
        with pytest.raises(UnsupportedModelError, match=said) as refused:
            read_metadata(written(tmp_path / "x.gguf", value))
        assert len(str(refused.value)) < 300
