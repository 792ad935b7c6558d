"""Proposals from tokens that other sessions have said. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.ngrams import NgramIndex

_CAPACITY = 200_000
"""Tokens of all sessions together."""


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

    def find(self, tokens: Sequence[int], length: int) -> tuple[tuple[int, ...], int] | None:
        """At most ``length`` tokens that may follow ``tokens``, and how many tokens agree before
        them."""
        found = self._index.locate(self._tokens, tokens)
        if found is None:
            return None
        end, agreeing = found
        return tuple(self._tokens[end : end + length]), agreeing
