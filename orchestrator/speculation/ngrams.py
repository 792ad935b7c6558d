"""Proposals from tokens that were said before, in a session or, shared, in any: what followed these
tokens then. Pure.

Saxena, "Prompt lookup decoding" (2023). A suffix of ``_GRAM`` tokens is looked up; among its latest
occurrences the one whose past agrees longest with the present is continued.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.speculation.proposal import Proposal, Source

_GRAM = 3
_OCCURRENCES = 8
_LONGEST_MATCH = 32
_BULK = 256
"""From so many new tokens on they are indexed together, in arrays: 14 bytes a token, where a
dictionary takes a hundred."""

_CAPACITY = 200_000
"""Tokens of all sessions together."""

_BITS = np.uint64(21)


class NgramIndex:
    """Follows one session's tokens. Indexing costs each token once; a look-up does not depend on
    the length."""

    def __init__(self) -> None:
        self._length = 0
        self._bulks: list[tuple[NDArray[np.uint64], NDArray[np.int32]]] = []
        self._recent: dict[int, list[int]] = {}

    def propose(self, tokens: Sequence[int], draft_length: int) -> tuple[Proposal, int] | None:
        """At most ``draft_length`` tokens, and how many tokens before them agree; None if these
        tokens are new."""
        self.follow(tokens)
        return self.find(tokens, tokens, draft_length)

    def find(self, followed: Sequence[int], tokens: Sequence[int], draft_length: int) -> tuple[Proposal, int] | None:
        """`propose`, for ``tokens`` that need not be the ``followed`` ones themselves."""
        if len(tokens) <= _GRAM:
            return None
        best, longest = -1, 0
        for end in self._occurrences(_key(tokens[-_GRAM:])):
            if end < len(followed) and (agreeing := _agreement(followed, end, tokens)) > longest:
                best, longest = end, agreeing
        if best < 0:
            return None
        return Proposal(tuple(followed[best : best + draft_length]), source=Source.NGRAM), longest

    def clear(self) -> None:
        """Forget everything: the tokens that were followed are not the session's any more."""
        self._length = 0
        self._bulks.clear()
        self._recent.clear()

    @property
    def length(self) -> int:
        """How many tokens have been followed."""
        return self._length

    def follow(self, tokens: Sequence[int]) -> None:
        """Index the grams that end since the last call."""
        start = max(self._length, _GRAM)
        if len(tokens) - start >= _BULK:
            self._index_bulk(tokens, start)
        else:
            for end in range(start, len(tokens)):
                ends = self._recent.setdefault(_key(tokens[end - _GRAM : end]), [])
                ends.append(end)
                del ends[:-_OCCURRENCES]
        self._length = len(tokens)

    def _index_bulk(self, tokens: Sequence[int], start: int) -> None:
        ids = np.array(tokens[start - _GRAM :], dtype=np.uint64)
        keys = np.zeros(len(ids) - _GRAM, dtype=np.uint64)
        for offset in range(_GRAM):
            keys = (keys << _BITS) | ids[offset : offset + len(keys)]
        order = np.argsort(keys, kind="stable")
        self._bulks.append((keys[order], (order + start).astype(np.int32)))

    def _occurrences(self, key: int) -> list[int]:
        """Latest first: positions after an earlier occurrence."""
        ends = self._recent.get(key, [])[::-1]
        for keys, positions in reversed(self._bulks):
            if len(ends) >= _OCCURRENCES:
                break
            first, last = np.searchsorted(keys, np.uint64(key), "left"), np.searchsorted(keys, np.uint64(key), "right")
            ends = [*ends, *positions[max(first, last - _OCCURRENCES) : last][::-1].tolist()]
        return ends[:_OCCURRENCES]


class SharedHistory:
    """What the latest turns of all sessions said, bounded: a session may be told what another one
    read or was answered.

    That changes no text, only how fast it comes; but so it tells, by its speed, what others have
    said. Hence only by option.
    """

    def __init__(self, capacity: int = _CAPACITY) -> None:
        """Of ``capacity`` tokens the older half is forgotten when it is full."""
        self._capacity = capacity
        self._tokens: list[int] = []
        self._index = NgramIndex()

    def learn(self, tokens: Sequence[int]) -> None:
        """A turn's tokens, prompt and answer."""
        self._tokens.extend(tokens[-self._capacity // 2 :])
        if len(self._tokens) > self._capacity:
            del self._tokens[: -self._capacity // 2]
            self._index.clear()
        self._index.follow(self._tokens)

    def propose(self, tokens: Sequence[int], draft_length: int) -> tuple[Proposal, int] | None:
        """As `NgramIndex.propose`."""
        return self._index.find(self._tokens, tokens, draft_length)


def _key(gram: Sequence[int]) -> int:
    key = 0
    for token in gram:
        key = (key << int(_BITS)) | token
    return key & 0xFFFFFFFFFFFFFFFF


def _agreement(followed: Sequence[int], end: int, tokens: Sequence[int]) -> int:
    """How many of the ``followed`` tokens before ``end`` equal the last of ``tokens``."""
    longest = min(_LONGEST_MATCH, end, len(tokens))
    count = 0
    while count < longest and followed[end - 1 - count] == tokens[-1 - count]:
        count += 1
    return count
