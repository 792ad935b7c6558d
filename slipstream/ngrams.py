"""An index of a growing sequence's tokens: what followed the same tokens before. Pure.

Saxena, "Prompt lookup decoding" (2023). The last ``_GRAM`` tokens are looked up. Among their latest
occurrences, the one whose past agrees longest with the present is continued.

Occurrences with the same hash form a chain, as in zlib's deflate: a table has the latest of each
hash, and each occurrence has a link to the one before. Two hashes may meet, so all agreeing tokens
are counted in the tokens themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

_GRAM = 3
_HASHES = 2**15
"""Rows of the table: 4 bytes each."""

_WINDOW = 2**17
"""Most occurrences that have a link, of 4 bytes each. Then the older half is forgotten."""

_LINKS = 16
"""Most occurrences that a look-up compares."""

LONGEST_AGREEMENT = 32
"""Agreeing tokens from which on no other occurrence is looked for."""

_BULK = 64
"""From so many new tokens on, numpy indexes them together."""

_FIRST, _SECOND, _THIRD = 0x2545F491, 0x1B873593, 0x2C1B3C6D
"""Odd factors below 2^30: a token id is below 2^31, so the sum of three products fits into 63
bits."""

_SHIFT = 17


class NgramIndex:
    """Follows one growing sequence. A token is indexed once, and a look-up's time does not depend
    on the length. It has 128 KB, 4 bytes for each token, and never more than 640 KB."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything: the next tokens are those of another sequence."""
        self._length = 0
        self._latest = array("i", [-1]) * _HASHES
        self._links = array("i")
        self._oldest = _GRAM

    @property
    def length(self) -> int:
        """The number of tokens that were followed."""
        return self._length

    def find(self, tokens: Sequence[int], length: int) -> tuple[tuple[int, ...], int] | None:
        """Return at most ``length`` tokens that may follow ``tokens``, and how many tokens agree
        before them; None if the last tokens are new. ``tokens`` are those of the call before with
        others appended. A continuation that reaches the end of the sequence repeats itself."""
        self.follow(tokens)
        found = self.locate(tokens, tokens)
        if found is None:
            return None
        end, agreeing = found
        continuation = tuple(tokens[end : end + length])
        while 0 < len(continuation) < length:
            continuation += continuation[: length - len(continuation)]
        return continuation, agreeing

    def locate(self, followed: Sequence[int], tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return the position in the ``followed`` tokens at which ``tokens`` continue, and how many
        tokens agree before it. None if their last tokens are not among the followed ones."""
        if len(tokens) < _GRAM:
            return None
        best, longest = -1, _GRAM - 1
        end = self._latest[_hash(tokens[-3], tokens[-2], tokens[-1])]
        for _ in range(_LINKS):
            if end < self._oldest:
                break
            agreeing = _agreement(followed, end, tokens, longest)
            if agreeing > longest:
                best, longest = end, agreeing
                if agreeing == LONGEST_AGREEMENT:
                    break
            end = self._links[end - self._oldest]
        return None if best < 0 else (best, longest)

    def follow(self, tokens: Sequence[int]) -> None:
        """Index the tokens that were appended since the last call."""
        start, length = max(self._length, _GRAM), len(tokens)
        if length - start >= _BULK:
            self._follow_bulk(tokens, start)
        else:
            latest, links = self._latest, self._links
            for end in range(start, length):
                hashed = _hash(tokens[end - 3], tokens[end - 2], tokens[end - 1])
                links.append(latest[hashed])
                latest[hashed] = end
        self._length = max(self._length, length)
        if len(self._links) > _WINDOW:
            forgotten = len(self._links) - _WINDOW // 2
            self._oldest += forgotten
            del self._links[:forgotten]

    def _follow_bulk(self, tokens: Sequence[int], start: int) -> None:
        start = max(start, len(tokens) - _WINDOW // 2)
        if start > self._oldest + len(self._links):  # the tokens in between have no links
            self.clear()
            self._oldest = start
        ids = np.array(tokens[start - _GRAM : -1], dtype=np.int64)
        hashes = ((ids[:-2] * _FIRST + ids[1:-1] * _SECOND + ids[2:] * _THIRD) >> _SHIFT) & (_HASHES - 1)
        order = np.argsort(hashes.astype(np.uint16), kind="stable")  # of 16 bits: in linear time
        ends = np.arange(start, len(tokens), dtype=np.int32)
        in_order = hashes[order]
        is_first = np.append(True, in_order[1:] != in_order[:-1])
        latest = np.frombuffer(self._latest, dtype=np.int32)
        before = np.empty_like(ends)
        before[1:] = ends[order[:-1]]
        before[is_first] = latest[in_order[is_first]]
        links = np.empty_like(ends)
        links[order] = before
        latest[hashes] = ends  # of equal hashes the last counts
        self._links.frombytes(links.tobytes())


def _hash(first: int, second: int, third: int) -> int:
    return ((first * _FIRST + second * _SECOND + third * _THIRD) >> _SHIFT) & (_HASHES - 1)


def _agreement(followed: Sequence[int], end: int, tokens: Sequence[int], longest: int) -> int:
    """Return how many of the ``followed`` tokens before ``end`` equal the last of ``tokens``. 0 if
    not more than ``longest`` do."""
    most = min(LONGEST_AGREEMENT, end, len(tokens))
    if most <= longest or followed[end - 1 - longest] != tokens[-1 - longest]:
        return 0
    count = 0
    while count < most and followed[end - 1 - count] == tokens[-1 - count]:
        count += 1
    return count
