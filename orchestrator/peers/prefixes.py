"""Remember where the beginnings of prompts have been read. A new session whose prompt begins alike
finds its past cached there. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

_ENDS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Tokens of the beginnings that are told apart. Fewer are read in no time, and templates begin all
alike."""

_MOST = 8192
"""Beginnings that are remembered."""


class Prefixes:
    """Addresses by beginnings of prompts, of which the least recently read are forgotten."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._addresses: OrderedDict[int, set[str]] = OrderedDict()

    def find(self, tokens: Sequence[int]) -> set[str]:
        """The addresses at which the longest beginning of these tokens has been read that is
        known."""
        found: set[str] = set()
        for beginning in _beginnings(tokens):
            found = self._addresses.get(beginning, found)
        return found

    def learn(self, tokens: Sequence[int], address: str) -> None:
        """Note that these tokens are read at an address."""
        for beginning in _beginnings(tokens):
            self._addresses.setdefault(beginning, set()).add(address)
            self._addresses.move_to_end(beginning)
        while len(self._addresses) > self._most:
            self._addresses.popitem(last=False)

    def forget(self, address: str) -> None:
        """Forget an address: its cache is gone."""
        for known in self._addresses.values():
            known.discard(address)


def _beginnings(tokens: Sequence[int]) -> Iterator[int]:
    """A hash of each, the shortest first. Two with the same hash cost no more than a prefill."""
    length, seen = 0, 0
    for end in _ENDS:
        if end > len(tokens):
            return
        seen = hash((seen, *tokens[length:end]))
        length = end
        yield seen
