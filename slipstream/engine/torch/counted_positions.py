"""Positions for attention that counts them itself, from the cache's length on.

Llama 4 scales the queries of its layers without rotary positions by a row's position. It takes this
as the row's number plus the length of its cache, although it is given ``position_ids``.
"""

from __future__ import annotations

from typing import Any

import torch


class CountedPositions:
    """Stands in for transformers' cache: its length makes each row's number the row's position."""

    def __init__(self, positions: torch.Tensor) -> None:
        """``positions``: int64 ``[1, rows]``."""
        self._before = positions[0] - torch.arange(positions.shape[1], device=positions.device)

    def get_seq_length(self, layer: int = 0) -> torch.Tensor:
        """Return what to add to each row's number: int64 ``[rows]``."""
        return self._before

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's keys and values as they are: paged attention keeps them."""
        return keys, values


def counts_positions(model: Any) -> bool:
    """Return True if attention of a loaded model counts positions itself."""
    return any(getattr(module, "attn_temperature_tuning", False) for module in model.modules())
