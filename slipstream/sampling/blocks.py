"""Rows of logits in blocks: what a search for the best token looks at before it looks at tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.sampling.noise import BLOCK, Ints

Floats32 = NDArray[np.float32]

_ROWS_AT_A_TIME = 8
"""That are widened to float32 to look at: more would leave the processor's cache."""


class BlockedLogits:
    """``logits`` ``[rows, vocabulary]`` of any float dtype on any device, and ``maxima`` ``[rows, blocks]`` on the CPU.

    A block's maximum is NaN if it has any NaN. Whatever is looked at is float32. The last block is filled up with -inf.
    """

    def __init__(self, logits: torch.Tensor, maxima: Floats32 | None = None) -> None:
        self.logits = logits
        self.vocabulary_size = logits.shape[1]
        self.block_count = -(-self.vocabulary_size // BLOCK)
        self._whole = logits[:, : self.vocabulary_size // BLOCK * BLOCK].reshape(len(logits), -1, BLOCK)
        self._rest = _filled_up(logits[:, self._whole.shape[1] * BLOCK :])
        self.maxima = self._maxima() if maxima is None else maxima

    def finite(self) -> list[bool]:
        """Of each row, whether its largest logit is a finite number; it is not if any of them is NaN."""
        largest: list[bool] = np.isfinite(self.maxima.max(axis=1)).tolist()
        return largest

    def subset(self, indices: Sequence[int]) -> BlockedLogits:
        """Some of the rows."""
        return BlockedLogits(self.logits[list(indices)], self.maxima[list(indices)])

    def row(self, index: int) -> torch.Tensor:
        """One row, float32 ``[vocabulary]``."""
        return self.logits[index].float()

    def tokens(self, tokens: Ints) -> Floats32:
        """Each row's logits of its own tokens ``[rows, n]``; -inf for ids past the vocabulary."""
        inside = tokens if self._rest is None else np.minimum(tokens, self.vocabulary_size - 1)
        picked = self.logits.gather(1, torch.from_numpy(inside).to(self.logits.device))
        values: Floats32 = picked.float().cpu().numpy()
        if inside is not tokens:
            values[tokens >= self.vocabulary_size] = -np.inf
        return values

    def blocks(self, rows: Ints, blocks: Ints) -> Floats32:
        """The logits of whole blocks ``[n, BLOCK]``, by their rows and numbers, each ``[n]``."""
        device, last = self.logits.device, self._whole.shape[1]
        at = torch.from_numpy(rows).to(device)
        if self._rest is None:
            picked = self._whole[at, torch.from_numpy(blocks).to(device)]
        else:
            inside = blocks < last
            picked = self._rest[at]
            picked[torch.from_numpy(inside)] = self._whole[
                at[torch.from_numpy(inside)], torch.from_numpy(blocks[inside]).to(device)
            ]
        values: Floats32 = picked.float().cpu().numpy()
        return values

    def _maxima(self) -> Floats32:
        largest = [self._whole[start : start + _ROWS_AT_A_TIME].float().amax(dim=-1) for start in self._starts()]
        maxima: Floats32 = (largest[0] if len(largest) == 1 else torch.cat(largest)).cpu().numpy()
        if self._rest is None:
            return maxima
        return np.concatenate((maxima, self._rest.float().amax(dim=-1, keepdim=True).cpu().numpy()), axis=1)

    def _starts(self) -> range:
        on_the_cpu = self.logits.device.type == "cpu"
        return range(0, len(self.logits), _ROWS_AT_A_TIME if on_the_cpu else len(self.logits))


def tokens_of(blocks: Ints) -> Ints:
    """Each block's token ids, ``[..., BLOCK]``."""
    tokens: Ints = blocks[..., None] * BLOCK + np.arange(BLOCK)
    return tokens


def sum_of_blocks(values: torch.Tensor) -> float:
    """The sum of non-negative float32 ``values`` ``[vocabulary]``, taken within blocks first and then in float64.

    How torch sums one long row depends on its threads, how it sums many short ones does not.
    """
    end = len(values) // BLOCK * BLOCK
    sums = values[:end].view(-1, BLOCK).sum(dim=-1).cpu().numpy()
    total = float(sums.sum(dtype=np.float64))
    return total + float(values[end:].sum()) if end < len(values) else total


def _filled_up(rest: torch.Tensor) -> torch.Tensor | None:
    """The tokens after the last whole block, as a block."""
    if not rest.shape[1]:
        return None
    return torch.nn.functional.pad(rest, (0, BLOCK - rest.shape[1]), value=-torch.inf)
