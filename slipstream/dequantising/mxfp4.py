"""gpt-oss' experts: FP4 numbers in blocks of 32, each with a power of two (OCP's MXFP4)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from slipstream.dequantising.scheme import Tensors, Weight
from slipstream.dequantising.small_floats import float4_pairs
from slipstream.engine.errors import UnsupportedModelError
from slipstream.sampling.kernel import Floats32

_BIAS = 127


class Mxfp4:
    """``x_blocks`` ``[experts, out, groups, 16]`` and ``x_scales`` ``[experts, out, groups]`` make
    ``x`` ``[experts, in, out]``: ``x[e, i, o] = block[e, o, i] * 2 ** (scale[e, o, group(i)] -
    127)``."""

    def weights(self, names: Collection[str]) -> Iterator[Weight]:
        for name in sorted(names):
            owner = name.removesuffix("_blocks")
            if owner == name:
                continue
            if f"{owner}_scales" not in names:
                raise UnsupportedModelError(f"{name} has no {owner}_scales beside it: copy or download the model again")
            yield Weight(owner, (name, f"{owner}_scales"))

    def dequantised(self, weight: Weight, tensors: Tensors) -> Iterator[Floats32]:
        blocks, scales = (tensors[name] for name in weight.made_of)
        if blocks.shape[:-1] != scales.shape:
            raise UnsupportedModelError(
                f"the blocks of {weight.name} are {list(blocks.shape)}, and its scales {list(scales.shape)}: the two do not "
                "belong together"
            )
        for block, scale in zip(blocks, scales, strict=True):
            powers = scale.astype(np.int32) - _BIAS
            numbers = np.ldexp(float4_pairs(block), powers[..., np.newaxis]).astype(np.float32)
            yield np.ascontiguousarray(numbers.reshape(len(scale), -1).T)[np.newaxis]
