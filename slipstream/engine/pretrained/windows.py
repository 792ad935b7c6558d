"""Learns which keys each layer's queries see from the masks that transformers makes for its own
attention.

What a config or a layer says of a window is no guide: Llama ignores ``sliding_window``, Qwen2-MoE
names it for layers whose mask has none, and Phi-MoE's layers do not name what their mask has. In
place of a mask the model is handed a number, which its layers pass on to their attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from slipstream.engine.errors import STOCK_ENGINES, UnsupportedModelError

_NAME = "slipstream_windows"
_ROWS = 8
_TOO_SHORT, _NO_WINDOW = -1, -2
_NEXT = 2**32
"""Place value of a chunk in a number that stands for a mask."""
_LONGEST = 2**20
"""Positions to look at where a config names no longest context."""


class Sight(NamedTuple):
    """The keys that a query of a layer sees: its own, and keys before it. 0 stands for no limit."""

    window: int = 0
    """Keys that a query sees at most."""
    chunk: int = 0
    """Positions of a chunk: a query sees keys of its own chunk only. Llama 4 calls it
    attention_chunk_size."""

    def first_keys(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the first key that a query at each of ``positions`` sees; below 0 means 0."""
        if self.chunk:
            return positions - positions % self.chunk
        return positions - self.window + 1 if self.window else torch.zeros_like(positions)


WHOLE = Sight()
"""A query sees all keys up to its own."""


def window_mask(*, mask_function: Callable[..., torch.Tensor], config: Any, **_: Any) -> torch.Tensor:
    """Stand in for a mask: int64 ``[1, 1, 1, 1]``, a `Sight` as a number, or what `sight_of`
    refuses where a layer uses it: some models make masks that none of their layers does."""
    text = config.get_text_config()
    length = int(getattr(text, "max_position_embeddings", 0) or _LONGEST)
    last = length - 1
    chunk = int(getattr(text, "attention_chunk_size", 0) or 0)
    if 0 < chunk < length and _is_seen(Sight(chunk=chunk), mask_function, {chunk - 1, chunk, 2 * chunk - 1}, last):
        return _in_place(Sight(chunk=chunk))
    window = int(_seen(mask_function, last)[: last + 1].sum())
    if window <= 1 < length:
        return torch.full((1, 1, 1, 1), _TOO_SHORT)
    if not _is_seen(Sight(window), mask_function, {window - 1, window, window + 1}, last):
        return torch.full((1, 1, 1, 1), _NO_WINDOW)
    return _in_place(WHOLE if window == length else Sight(window))


def _in_place(sight: Sight) -> torch.Tensor:
    return torch.full((1, 1, 1, 1), sight.chunk * _NEXT + sight.window)


def _is_seen(sight: Sight, mask_function: Callable[..., torch.Tensor], queries: set[int], last: int) -> bool:
    """Return True if some queries, the first ones and the ``last`` see what ``sight`` says."""
    for query in {0, 1, last // 2, last} | queries:
        keys = torch.arange(query + 2)
        expected = (keys >= sight.first_keys(torch.tensor(query))) & (keys <= query)
        if 0 <= query <= last and not torch.equal(_seen(mask_function, query), expected):
            return False
    return True


def _seen(mask_function: Callable[..., torch.Tensor], query: int) -> torch.Tensor:
    """Return the keys that a query sees, up to the one after its own."""
    first = torch.tensor(0)
    keys = torch.arange(query + 2)
    return torch.as_tensor(mask_function(first, first, torch.tensor(query), keys)).expand(query + 2)


def sight_of(module: Any, mask: torch.Tensor | None) -> Sight:
    """Return what `window_mask` handed to a layer's attention. TypeError if its mask is another
    one, UnsupportedModelError if it cannot be served."""
    if mask is None:
        return WHOLE
    if mask.is_floating_point() or mask.numel() != 1:
        raise TypeError(f"{type(module).__name__} brings an attention mask or bias of its own")
    number = int(mask)
    if number == _TOO_SHORT:
        raise UnsupportedModelError(
            f"{type(module).__name__} has a sliding_window below 2, where transformers contradicts itself: its mask hides all "
            "earlier keys, and its cache keeps them: set sliding_window to null or to 2 or more"
        )
    if number == _NO_WINDOW:
        raise UnsupportedModelError(
            f"{type(module).__name__} attends by a mask that is neither causal nor of a sliding window or chunks; only these "
            f"can be served here; {STOCK_ENGINES}"
        )
    return Sight(number % _NEXT, number // _NEXT)


@torch.inference_mode()
def layer_windows(model: Any) -> list[int]:
    """Return each layer's window, 0 for none, by one forward of a few tokens. The model's layers
    have no chunks. UnsupportedModelError."""
    windows: dict[int, int] = {}

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **_: Any
    ) -> tuple[torch.Tensor, None]:
        windows[module.layer_idx] = sight_of(module, mask).window
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
