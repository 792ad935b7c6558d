"""Weights whose integers are packed into int32 numbers: GPTQ, AWQ and compressed-tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator

import numpy as np

from slipstream.dequantising.scheme import Tensors, Weight
from slipstream.dequantising.small_floats import unpacked
from slipstream.engine.errors import UnsupportedModelError
from slipstream.sampling.kernel import Floats32

_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""AWQ's nibble ``i`` of a number belongs to the column ``_AWQ_ORDER[i]`` of its eight."""


class Packed(ABC):
    """Weights in integers, with scales and zeros of groups."""

    main: str
    """Last name of the packed tensor."""
    beside: tuple[str, ...]
    """The tensors that it needs."""
    perhaps: tuple[str, ...] = ()
    """The tensors that it may have."""

    def weights(self, names: Collection[str]) -> Iterator[Weight]:
        for name in sorted(names):
            if not name.endswith(f".{self.main}"):
                continue
            owner = name.removesuffix(self.main)
            needed = [f"{owner}{each}" for each in self.beside]
            if absent := [each for each in needed if each not in names]:
                raise UnsupportedModelError(f"{name} has no {absent[0]} beside it: copy or download the model again")
            found = [f"{owner}{each}" for each in self.perhaps if f"{owner}{each}" in names]
            yield Weight(f"{owner}weight", (name, *needed, *found))

    def dequantised(self, weight: Weight, tensors: Tensors) -> Iterator[Floats32]:
        owner = weight.name.removesuffix("weight")
        given = {name.removeprefix(owner): tensors[name] for name in weight.made_of}
        try:
            yield self.numbers(given)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            shapes = ", ".join(f"{name} {list(each.shape)}" for name, each in given.items())
            raise UnsupportedModelError(f"the parts of {weight.name} do not fit together: {shapes}") from error

    @abstractmethod
    def numbers(self, given: Tensors) -> Floats32:
        """Return a weight ``[out, in]``. ``given`` has the tensors by their last names.
        ValueError, IndexError or ZeroDivisionError if they do not fit together."""


class Gptq(Packed):
    """GPTQ: ``weight[o, i] = (q[i, o] - zero[group(i), o]) * scale[group(i), o]``.

    ``q`` is packed along the inputs, ``zero`` along the outputs. The first form of the format
    stores each zero less one.
    """

    main, beside, perhaps = "qweight", ("qzeros", "scales"), ("g_idx",)

    def __init__(self, bits: int, zero_offset: int) -> None:
        self._bits = bits
        self._zero_offset = zero_offset

    def numbers(self, given: Tensors) -> Floats32:
        codes = unpacked(given["qweight"], self._bits, 0)
        scales = given["scales"]
        zeros = unpacked(given["qzeros"], self._bits, 1)[:, : scales.shape[1]]
        shift = zeros.astype(np.float32) + np.float32(self._zero_offset)
        return _shifted(codes, shift, scales, given.get("g_idx"))


class Awq(Packed):
    """AWQ (its ``gemm`` form): as GPTQ, packed along the outputs, with the columns of each eight in
    another order."""

    main, beside, perhaps = "qweight", ("scales",), ("qzeros",)

    def numbers(self, given: Tensors) -> Floats32:
        codes, scales = _awq_columns(given["qweight"]), given["scales"]
        zeros = _awq_columns(given["qzeros"]) if "qzeros" in given else np.full(scales.shape, 8)
        return _shifted(codes, zeros.astype(np.float32), scales)


class CompressedPacked(Packed):
    """compressed-tensors' ``pack-quantized``: symmetric integers, stored plus half their range,
    packed along the inputs; ``weight[o, i] = (q[o, i] - half) * scale[o, group(i)]``."""

    main, beside, perhaps = "weight_packed", ("weight_scale", "weight_shape"), ("weight_g_idx",)

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def numbers(self, given: Tensors) -> Floats32:
        rows, columns = (int(size) for size in given["weight_shape"])
        codes = unpacked(given["weight_packed"], self._bits, 1)[:rows, :columns]
        if codes.shape != (rows, columns):
            raise ValueError
        scales = given["weight_scale"].reshape(rows, -1)
        groups = given.get("weight_g_idx")
        if groups is None:
            groups = _groups(columns, scales.shape[1])
        return (codes.astype(np.float32) - np.float32(2 ** (self._bits - 1))) * scales[:, groups]


def _shifted(codes: np.ndarray, shift: Floats32, scales: Floats32, groups: np.ndarray | None = None) -> Floats32:
    """Return a weight ``[out, in]`` of codes ``[in, out]``, with a shift and a scale of each group
    and output. ValueError or IndexError if they do not fit together."""
    if shift.shape != scales.shape or codes.shape[1:] != scales.shape[1:]:
        raise ValueError
    if groups is None:
        groups = _groups(len(codes), len(scales))
    return np.ascontiguousarray(((codes - shift[groups]) * scales[groups]).T)


def _groups(count: int, group_count: int) -> np.ndarray:
    """Return the group of each input. ValueError if the groups are not of one size: only ``g_idx``
    could say which is shorter."""
    if count % group_count:
        raise ValueError
    return np.arange(count) // (count // group_count)


def _awq_columns(packed: np.ndarray) -> np.ndarray:
    codes = unpacked(packed, 4, 1).reshape(len(packed), -1, 8)
    ordered = np.empty_like(codes)
    ordered[..., _AWQ_ORDER] = codes
    return ordered.reshape(len(packed), -1)
