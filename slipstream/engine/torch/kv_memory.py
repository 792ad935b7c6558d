"""The KV memory: a pair of tensors for each layer, reserved at start."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream.engine.pretrained.windows import WHOLE, Sight
from slipstream.engine.sequence import PageCopy


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one attention layer's cache: heads, the sizes of keys and values, the query heads
    that share a key head, and which keys a query sees."""

    head_count: int
    key_size: int
    value_size: int
    queries_per_key: int = 1
    sight: Sight = WHOLE


def bytes_per_page(layers: list[LayerShape], page_size: int, dtype: torch.dtype) -> int:
    """Return the bytes that one page takes over all layers."""
    return page_size * dtype.itemsize * sum(s.head_count * (s.key_size + s.value_size) for s in layers)


class KvMemory:
    """Keys and values ``[heads, pages + 1, page_size, size]`` for each layer. Page 0 is the padding
    page.

    The keys of one head lie together, because attention reads them head by head. With the heads of
    a slot together, a model of 24 heads takes up to twice as long for attention on a CPU, for the
    same bits. The memory starts as zeros, because a masked key must still be a finite number.
    """

    def __init__(
        self, layers: list[LayerShape], page_count: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        def reserve(shape: LayerShape, size: int) -> torch.Tensor:
            return torch.zeros(shape.head_count, self.page_count, page_size, size, dtype=dtype, device=device)

        self.page_count = page_count + 1
        self.layers = layers
        self.keys = [reserve(shape, shape.key_size) for shape in layers]
        self.values = [reserve(shape, shape.value_size) for shape in layers]
        self.byte_count = sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def erase(self, pages: list[int]) -> None:
        """Overwrite pages with zeros, and wait until this is done."""
        for memory in (*self.keys, *self.values):
            memory[:, pages] = 0
            memory[0, pages[-1], 0, 0].item()  # a lost device reports its error only when something is read back

    def copy(self, copies: list[PageCopy]) -> None:
        """Copy whole pages, in order."""
        for copy in copies:
            for memory in (*self.keys, *self.values):
                memory[:, copy.destination] = memory[:, copy.source]
