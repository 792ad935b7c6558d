"""A trial at load: a sequence's logits must have the same bits alone, beside others, in any place
and in chunks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Backend, Reserved, Segment
from slipstream.sampling.blocks import BlockedLogits, Logits

_TOKENS = 24
_SEQUENCES = 4
_ORDERS = ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0))
"""Sequences of one forward each. Sequence 0 stands in every place."""
_CHUNK = 7
"""Tokens of a chunk. It is no multiple of the padding of rows."""


class _Trial(NamedTuple):
    """Sequences of random tokens, each in pages of its own."""

    backend: Backend
    texts: list[list[int]]
    pages: list[range]

    def run(self, order: tuple[int, ...], start: int, stop: int) -> dict[int, Logits]:
        """Return the logits of tokens ``start`` to ``stop`` of each sequence, computed in one
        forward."""
        segments = [Segment(self.texts[at][start:stop], start, self.pages[at], stop - start) for at in order]
        logits = self.backend.forward(segments)
        stored = logits.stored if isinstance(logits, BlockedLogits) else logits
        return {at: part.copy() for at, part in zip(order, np.split(stored, len(order)), strict=True)}


def see_rows_alone(backend: Backend, reserved: Reserved, advice: str) -> None:
    """Raise UnsupportedModelError with ``advice`` if a row's bits depend on the rows beside it, on
    its place or on the chunks of its sequence."""
    size = reserved.page_size
    pages_each = min(-(-_TOKENS // size), reserved.page_count // _SEQUENCES)
    count = min(_TOKENS, pages_each * size, backend.model.context_length)
    if not count:
        return  # there is no room for other sequences
    generator = torch.Generator().manual_seed(0)
    shape = _SEQUENCES, count
    trial = _Trial(
        backend,
        torch.randint(backend.model.vocabulary_size, shape, generator=generator).tolist(),
        [range(1 + at * pages_each, 1 + (at + 1) * pages_each) for at in range(_SEQUENCES)],
    )
    alone = {at: trial.run((at,), 0, count)[at] for at in range(_SEQUENCES)}
    for order in _ORDERS:
        for at, logits in trial.run(order, 0, count).items():
            _compare(backend, logits, alone[at], advice)
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        for at, logits in trial.run(_ORDERS[1], start, stop).items():
            _compare(backend, logits, alone[at][start:stop], advice)


def _compare(backend: Backend, one: Logits, other: Logits, advice: str) -> None:
    if not np.array_equal(one.view(np.uint8), other.view(np.uint8)):
        model = backend.model
        raise UnsupportedModelError(
            f"{model.architecture} in {model.dtype} on {model.device}: a row's numbers depend on the rows beside it, so texts "
            f"would depend on other requests; {advice}"
        )
