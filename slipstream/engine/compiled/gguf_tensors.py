"""The tensors of a model's GGUF files, as arrays that stay on disk until they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_metadata import AGAIN, Header, TensorInfo


class Tensor(NamedTuple):
    """A tensor in a file."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    """Sizes, the outermost first."""
    data: np.ndarray
    """Bytes: uint8 ``[..., bytes of a row]``."""


def tensors_in(headers: Mapping[Path, Header]) -> dict[str, Tensor]:
    """Return the tensors of all files by name. UnsupportedModelError if a file does not hold what
    its header says, NotCompiledError for a type that is not known."""
    found: dict[str, Tensor] = {}
    for path, header in headers.items():
        values = np.memmap(path, np.uint8, "r")[header.data_start :]
        _refuse_misplaced(path, header.tensors, len(values))
        for info in header.tensors:
            if info.name in found:
                raise UnsupportedModelError(f"{path} has {info.name}, which another of its files has too; {AGAIN}")
            shape = info.shape[::-1]
            data = values[info.start : info.start + _size(info)].reshape(*shape[:-1], -1)
            found[info.name] = Tensor(info.name, GGMLQuantizationType(info.type), shape, data)
    return found


def _refuse_misplaced(path: Path, tensors: list[TensorInfo], size: int) -> None:
    """Raise UnsupportedModelError if a tensor reaches into the next, or past the file's end."""
    ends = [(info.start, info.start + _size(info), info.name) for info in tensors]
    for (_, end, name), (start, _, after) in pairwise([*sorted(ends), (size, size, "the end of the file")]):
        if end > start:
            raise UnsupportedModelError(f"{path} is damaged: its {name} reaches into {after}; {AGAIN}")


def _size(info: TensorInfo) -> int:
    """Return a tensor's bytes."""
    inputs: int
    size: int
    try:
        inputs, size = GGML_QUANT_SIZES[GGMLQuantizationType(info.type)]
    except ValueError as error:
        raise NotCompiledError(f"its {info.name} is of {info.type_name}, which is not known") from error
    if info.shape[0] % inputs:
        raise NotCompiledError(f"its {info.name} has rows of {info.shape[0]}, no blocks of {inputs}")
    return math.prod(info.shape) // inputs * size
