"""The copy of logits to the host, where tokens are chosen. The device finds the largest logit of
each block, which `slipstream.sampling.blocks` reads first."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream.engine.torch.host_logits import host_logits
from slipstream.sampling.blocks import BlockedLogits, block_count
from slipstream.sampling.kernel import BLOCK

_BLOCKS = 64
"""Blocks that a program reads."""
_ROWS = 64
"""Multiple of rows for which room is made."""
_INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


class HostLogits:
    """Host memory for a forward's logits and their blocks' maxima. The next forward uses it
    again."""

    def __init__(self, vocabulary_size: int, dtype: torch.dtype, *, pinned: bool) -> None:
        self._vocabulary_size, self._dtype, self._pinned = vocabulary_size, dtype, pinned
        self._make(0)

    def make_room(self, row_count: int) -> None:
        """Make room for ``row_count`` rows. The content may be lost."""
        if len(self._logits) < row_count:
            self._make(-(-row_count // _ROWS) * _ROWS)

    def fetch(self, logits: torch.Tensor, first: int) -> None:
        """Start the copy of rows ``[rows, vocabulary]``, from row ``first`` on. It is complete when
        the device has got that far."""
        rows, logits = (
            slice(first, first + len(logits)),
            logits.to(self._dtype),
        )  # a head may have another dtype than its model
        self._maxima[rows].copy_(find_maxima(logits), non_blocking=True)
        self._logits[rows].copy_(logits, non_blocking=True)

    def first(self, row_count: int) -> BlockedLogits:
        """Return the first ``row_count`` rows."""
        return BlockedLogits(host_logits(self._logits[:row_count]), self._maxima[:row_count].numpy())

    def _make(self, row_count: int) -> None:
        size, pinned = self._vocabulary_size, self._pinned
        self._logits = torch.empty(row_count, size, dtype=self._dtype, pin_memory=pinned)
        self._maxima = torch.empty(row_count, block_count(size), pin_memory=pinned)


def find_maxima(logits: torch.Tensor) -> torch.Tensor:
    """Return float32 ``[rows, blocks]`` of logits ``[rows, vocabulary]``, as
    `slipstream.sampling.kernel.find_maxima` finds them: NaN if a block has one."""
    rows, size = logits.shape
    blocks = block_count(size)
    maxima = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
    stored = logits.view(_INTEGERS[logits.dtype])
    _find[rows, triton.cdiv(blocks, _BLOCKS)](
        stored, maxima, stored.stride(0), size, blocks, width=BLOCK, at_once=_BLOCKS, shift=32 - 8 * logits.itemsize
    )
    return maxima


@triton.jit(do_not_specialize=["row_stride", "size", "blocks"])
def _find(stored, maxima, row_stride, size, blocks, width: tl.constexpr, at_once: tl.constexpr, shift: tl.constexpr):
    """Compare the numbers by their bits. As integers they rise as the numbers do, except that those
    below zero fall."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * at_once + tl.arange(0, at_once)
    token = block[:, None] * width + tl.arange(0, width)[None, :]
    is_real = token < size
    bits = tl.load(stored + row * row_stride + token, mask=is_real, other=0).to(tl.int32) << shift
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    best = tl.max(tl.where(is_real, rising, -0x80000000), axis=1)
    magnitude = tl.max(tl.where(is_real, bits & 0x7FFFFFFF, 0), axis=1)
    largest = (best ^ ((best >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    largest = tl.where(magnitude > 0x7F800000, float("nan"), largest)
    tl.store(maxima + row * blocks + block, largest, mask=block < blocks)
