"""The batch that libllama computes in one call, in memory that NumPy writes in slices instead of
value by value."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.engine.llamacpp.libllama import Batch

_Int32s = ctypes.POINTER(ctypes.c_int32)


class Rows:
    """A llama_batch. Each row belongs to one stream."""

    def __init__(self, most: int, embedding_size: int = 0) -> None:
        """``most`` is the largest number of rows. With an ``embedding_size`` the rows hold
        embeddings of zeros instead of tokens."""
        self._tokens = np.zeros(most, np.int32)
        self._positions = np.zeros(most, np.int32)
        self._stream_counts = np.ones(most, np.int32)
        self._streams = np.zeros(most, np.int32)
        self._stream_pointers = self._streams.ctypes.data + np.arange(most, dtype=np.uintp) * self._streams.itemsize
        self._asked = np.zeros(most, np.int8)
        self._embeddings = np.zeros((most, embedding_size), np.float32)
        self._count = 0

        def pointer(array: np.ndarray, kind: type) -> Any:
            return ctypes.cast(array.ctypes.data, kind)

        self._batch = Batch(
            0,
            None if embedding_size else pointer(self._tokens, _Int32s),
            self._embeddings.ctypes.data if embedding_size else None,
            pointer(self._positions, _Int32s),
            pointer(self._stream_counts, _Int32s),
            pointer(self._stream_pointers, ctypes.POINTER(_Int32s)),
            pointer(self._asked, ctypes.POINTER(ctypes.c_int8)),
        )

    def clear(self) -> None:
        """Remove all rows."""
        self._count = 0

    def add(self, stream: int, start: int, tokens: Sequence[int], *, asked_from: int) -> None:
        """Add a stream's ``tokens`` from position ``start``. Logits are asked for from index
        ``asked_from`` on."""
        first, self._count = self._count, self._count + len(tokens)
        rows = slice(first, self._count)
        self._tokens[rows] = tokens
        self._positions[rows] = np.arange(start, start + len(tokens))
        self._streams[rows] = stream
        self._asked[rows] = 0
        self._asked[first + asked_from : self._count] = 1

    def batch(self) -> Batch:
        """Return the batch for libllama. It points into these rows, which must outlive its use."""
        self._batch.n_tokens = self._count
        return self._batch
