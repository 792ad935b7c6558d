"""Token ids as the store holds them: int32, little-endian."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence


def bytes_of(tokens: Sequence[int]) -> bytes:
    """Return token ids as bytes."""
    numbers = array("i", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def tokens_of(data: bytes) -> list[int]:
    """Return the token ids that `bytes_of` wrote."""
    numbers = array("i", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
