"""The protocol of a way to store quantised weights: which tensors make a weight, and how."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from slipstream.sampling.kernel import Floats32

Tensors = Mapping[str, np.ndarray]
"""Tensors by their names. FP8 numbers are uint8; all other floats are float32."""


class Weight(NamedTuple):
    """A weight of the plain checkpoint."""

    name: str
    made_of: tuple[str, ...]
    """Names of the stored tensors that it needs."""


class Scheme(Protocol):
    """A way to store quantised weights."""

    def weights(self, names: Collection[str]) -> Iterator[Weight]:
        """Yield the weights that stored tensors of these ``names`` make. UnsupportedModelError if
        one cannot be made."""

    def dequantised(self, weight: Weight, tensors: Tensors) -> Iterator[Floats32]:
        """Yield a weight's numbers, in parts along its first axis: experts one by one.
        UnsupportedModelError if the tensors do not fit together."""
