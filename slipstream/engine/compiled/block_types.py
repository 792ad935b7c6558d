"""Types of quantised matrices: how a block of 32 weights is stored, and what its bits mean.

A matrix ``[outputs, inputs]`` is stored as ``[outputs / 16][groups]``. A group has one block or
eight, for sixteen outputs each::

    [blocks] quants (`BlockType.unpacked`)
    [blocks][scales of a block][16] scales in int8 or uint8  } if a group has
    [blocks][16] minima in uint8, if there are any           } several blocks
    [16] scales in float16
    [16] minima in float16, if there are any

A weight is ``scale * (quant - offset) + minimum``. In a group of several blocks, the numbers in
float16 multiply each block's own. Four inputs are a step: their quants are the bytes of a lane.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.engine.compiled.lanes import LANES

BLOCK = 32
"""Inputs of a block."""

STEP_INPUTS = 4
STEPS = BLOCK // STEP_INPUTS
STEP_BYTES = LANES * STEP_INPUTS


class BlockType(NamedTuple):
    """A type of GGUF's. A quant has so many ``bits``, a group so many ``blocks``, and a block so
    many ``scales``."""

    name: str
    bits: int
    offset: int = 0
    has_minima: bool = False
    blocks: int = 1
    scales: int = 1

    @property
    def quant_bytes(self) -> int:
        """Bytes of a block's quants, for sixteen outputs."""
        return BLOCK * LANES * self.bits // 8

    @property
    def scales_place(self) -> int:
        """Place of the scales in a group."""
        return self.blocks * self.quant_bytes

    @property
    def minima_place(self) -> int:
        """Place of the minima that blocks of a group have."""
        return self.scales_place + self.blocks * self.scales * LANES

    @property
    def factors_place(self) -> int:
        """Place of the numbers in float16."""
        if self.blocks == 1:
            return self.scales_place
        return self.minima_place + self.blocks * LANES * self.has_minima

    @property
    def group_bytes(self) -> int:
        """Bytes of a group."""
        return self.factors_place + 2 * LANES * (1 + self.has_minima)

    @property
    def group_inputs(self) -> int:
        """Inputs of a group."""
        return self.blocks * BLOCK


BLOCK_TYPES = {
    each.name: each
    for each in (
        BlockType("q8_0", 8, 128),
        BlockType("q4_0", 4, 8),
        BlockType("q4_1", 4, has_minima=True),
        BlockType("q5_0", 5, 16),
        BlockType("q5_1", 5, has_minima=True),
        BlockType("q4_k", 4, has_minima=True, blocks=8),
        BlockType("q5_k", 5, has_minima=True, blocks=8),
        BlockType("q6_k", 6, 32, blocks=8, scales=2),
    )
}
"""Types by their names."""
