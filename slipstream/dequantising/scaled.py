"""Weights of eight bits beside their scales: FP8 in blocks, FP8 and int8 by tensor or channel."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from slipstream.dequantising.scheme import Tensors, Weight
from slipstream.dequantising.small_floats import float8
from slipstream.engine.errors import UnsupportedModelError
from slipstream.sampling.kernel import Floats32


class Scaled:
    """``weight = stored * scale``: DeepSeek's and Qwen's FP8 (``fp8``), FBGEMM's (``fbgemm_fp8``),
    compressed-tensors' ``float-quantized`` and ``int-quantized``, and bitsandbytes' int8.

    A scale is one number, one for each row, or one for each block.
    """

    def __init__(self, block: Sequence[int] | None, scales: Sequence[str], divisor: float = 1.0) -> None:
        """``block``: rows and columns of a block; None: there are no blocks. ``scales``: what a
        scale may be called beside its weight. A scale is divided by ``divisor``."""
        self._block = block
        self._scales = scales
        self._divisor = np.float32(divisor)

    def weights(self, names: Collection[str]) -> Iterator[Weight]:
        for name in sorted(names):
            suffix = next((each for each in self._scales if name.endswith(each)), "")
            if suffix and (weight := _owned(name.removesuffix(suffix), names)) is not None:
                yield Weight(weight, (weight, name))

    def dequantised(self, weight: Weight, tensors: Tensors) -> Iterator[Floats32]:
        stored, scale = (tensors[name] for name in weight.made_of)
        if stored.ndim == 3 and scale.ndim == 3 and len(stored) == len(scale):  # experts
            for one, its_scale in zip(stored, scale, strict=True):
                yield self._scaled(weight.name, one, its_scale)[np.newaxis]
        else:
            yield self._scaled(weight.name, stored, scale)

    def _scaled(self, name: str, stored: np.ndarray, scale: np.ndarray) -> Floats32:
        values = float8(stored) if stored.dtype == np.uint8 else stored.astype(np.float32)
        scale = np.asarray(scale, np.float32) / self._divisor
        if self._block is not None and scale.size > 1:
            scale = _spread(scale, self._block, values.shape, name)
        elif scale.ndim == 1 and len(scale) == len(values):
            scale = scale.reshape(-1, *(1,) * (values.ndim - 1))
        try:
            scaled: Floats32 = values * scale
        except ValueError:
            raise UnsupportedModelError(
                f"{name} is {list(values.shape)}, and its scale {list(scale.shape)}: the two do not belong together"
            ) from None
        return scaled


def _owned(owner: str, names: Collection[str]) -> str | None:
    """Return the weight that a scale is for: ``x.`` owns ``x.weight``, ``x.y_`` owns ``x.y``."""
    return next((name for name in (f"{owner}weight", owner.rstrip("_")) if name in names), None)


def _spread(scale: Floats32, block: Sequence[int], shape: tuple[int, ...], name: str) -> Floats32:
    """Return the scale of each number of a weight whose last two axes are in blocks."""
    wanted = tuple(-(-size // of) for size, of in zip(shape[-2:], block, strict=True))
    if scale.shape != (*shape[:-2], *wanted):
        raise UnsupportedModelError(
            f"{name} is {list(shape)} in blocks of {list(block)}, but its scales are {list(scale.shape)}"
        )
    rows, columns = block
    return scale.repeat(rows, -2)[..., : shape[-2], :].repeat(columns, -1)[..., : shape[-1]]
