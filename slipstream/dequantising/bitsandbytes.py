"""bitsandbytes' four bits (NF4 and FP4): a table of 16 numbers, and the largest of each block."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from slipstream.dequantising.scheme import Tensors, Weight
from slipstream.engine.errors import UnsupportedModelError
from slipstream.sampling.kernel import Floats32

_STATES = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
_BESIDE = ("absmax", "quant_map")
_NESTED = ("nested_absmax", "nested_quant_map")


class FourBits:
    """``weight = table[code] * absmax[block]``. The high half of a byte is the first number.
    ``absmax`` may be quantised itself, by the same rule with eight bits and an offset (QLoRA,
    Dettmers et al., 2023)."""

    def weights(self, names: Collection[str]) -> Iterator[Weight]:
        for name in sorted(names):
            state = next((each for each in _STATES if name.endswith(f".{each}")), None)
            if state is None:
                continue
            weight = name.removesuffix(f".{state}")
            needed = [weight, *(f"{weight}.{each}" for each in _BESIDE)]
            if absent := [each for each in needed if each not in names]:
                raise UnsupportedModelError(f"{name} has no {absent[0]} beside it: copy or download the model again")
            nested = [f"{weight}.{each}" for each in _NESTED if f"{weight}.{each}" in names]
            yield Weight(weight, (*needed, name, *nested))

    def dequantised(self, weight: Weight, tensors: Tensors) -> Iterator[Floats32]:
        codes, absmax, table, state_bytes, *nested = (tensors[name] for name in weight.made_of)
        try:
            state = json.loads(bytes(state_bytes))
            largest = _nested(absmax, nested[0], nested[1], state) if nested else absmax
            halves = np.stack([codes.reshape(-1) >> 4, codes.reshape(-1) & 15], axis=-1).reshape(-1)
            size = math.prod(state["shape"])
            if size > halves.size:
                raise ValueError(f"{halves.size} numbers for {state['shape']}")
            numbers: Floats32 = (table[halves[:size]] * _spread(largest, state["blocksize"], size)).astype(np.float32)
            yield numbers.reshape(state["shape"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise UnsupportedModelError(f"the parts of {weight.name} do not fit together: {error!r}") from error


def _nested(codes: np.ndarray, absmax: Floats32, table: Floats32, state: Any) -> Floats32:
    scales = _spread(absmax, state["nested_blocksize"], codes.size)
    largest: Floats32 = table[codes.reshape(-1)] * scales + np.float32(state["nested_offset"])
    return largest


def _spread(scales: Floats32, block: int, count: int) -> Floats32:
    """Return the scale of each of ``count`` numbers. ValueError or IndexError if the blocks are not
    theirs."""
    if block < 1 or len(scales) != -(-count // block):
        raise ValueError(f"{len(scales)} blocks of {block} for {count} numbers")
    return scales[np.arange(count) // block]
