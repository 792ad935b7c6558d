"""Learns each layer's sliding window from the masks that transformers makes for its own attention.

What a config or a layer says of a window is no guide: Llama ignores ``sliding_window``, Qwen2-MoE
names it for layers whose mask has none, and Phi-MoE's layers do not name what their mask has. In
place of a mask the model is handed a number, which its layers pass on to their attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from slipstream.engine.errors import UnsupportedModelError

_NAME = "slipstream_windows"
_ROWS = 8
_TOO_SHORT, _NO_WINDOW = -1, -2
_LONGEST = 2**20
"""Positions to look at where a config names no longest context."""


def window_mask(*, mask_function: Callable[..., torch.Tensor], config: Any, **_: Any) -> torch.Tensor:
    """Stand in for a mask: int64 ``[1, 1, 1, 1]``, how many keys a query sees at most, 0 for all,
    or what `window_of` refuses where a layer uses it: some models make masks that none of their
    layers does."""
    length = int(getattr(config.get_text_config(), "max_position_embeddings", 0) or _LONGEST)
    last = length - 1
    window = int(_seen(mask_function, last)[: last + 1].sum())
    if window <= 1 < length:
        return torch.full((1, 1, 1, 1), _TOO_SHORT)
    for query in {0, 1, window - 1, window, window + 1, last // 2, last}:
        keys = torch.arange(query + 2)
        if 0 <= query <= last and not torch.equal(
            _seen(mask_function, query), (keys > query - window) & (keys <= query)
        ):
            return torch.full((1, 1, 1, 1), _NO_WINDOW)
    return torch.full((1, 1, 1, 1), 0 if window == length else window)


def _seen(mask_function: Callable[..., torch.Tensor], query: int) -> torch.Tensor:
    """Return the keys that a query sees, up to the one after its own."""
    first = torch.tensor(0)
    keys = torch.arange(query + 2)
    return torch.as_tensor(mask_function(first, first, torch.tensor(query), keys)).expand(query + 2)


def window_of(module: Any, mask: torch.Tensor | None) -> int:
    """Return the window that a layer's attention was handed by `window_mask`. TypeError if its mask
    is another one, UnsupportedModelError if it cannot be served."""
    if mask is None:
        return 0
    if mask.is_floating_point() or mask.numel() != 1:
        raise TypeError(f"{type(module).__name__} brings an attention mask or bias of its own")
    window = int(mask)
    if window == _TOO_SHORT:
        raise UnsupportedModelError(
            f"{type(module).__name__} has a sliding_window below 2, where transformers contradicts itself: its mask hides all "
            "earlier keys, and its cache keeps them: set sliding_window to null or to 2 or more"
        )
    if window == _NO_WINDOW:
        raise UnsupportedModelError(
            f"{type(module).__name__} attends by a mask that is neither causal nor a sliding window; only these can be served"
        )
    return window


@torch.inference_mode()
def layer_windows(model: Any) -> list[int]:
    """Return each layer's window, 0 for none, by one forward of a few tokens.
    UnsupportedModelError."""
    windows: dict[int, int] = {}

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **_: Any
    ) -> tuple[torch.Tensor, None]:
        windows[module.layer_idx] = window_of(module, mask)
        return value.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(1, 2), None

    AttentionInterface.register(_NAME, attend)
    config, rows = model.config, torch.arange(_ROWS, device=model.device).unsqueeze(0)
    before = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        model(input_ids=torch.zeros_like(rows), position_ids=rows, use_cache=False)
    finally:
        config._attn_implementation = before
    return [window for _, window in sorted(windows.items())]


AttentionMaskInterface.register(_NAME, window_mask)
