"""The prompt beginnings that each verifier has read. A new session whose prompt begins alike finds
them cached there. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

_ENDS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Lengths in tokens of the beginnings that are told apart. Shorter ones take no time to read, and
all templates begin alike."""

_MOST = 8192
"""Most beginnings that are remembered."""


class Prefixes:
    """Addresses by prompt beginning. The least recently read beginnings are forgotten."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._addresses: OrderedDict[int, set[str]] = OrderedDict()

    def find(self, tokens: Sequence[int]) -> set[str]:
        """Return the addresses that have read the longest known beginning of these tokens."""
        found: set[str] = set()
        for beginning in _beginnings(tokens):
            found = self._addresses.get(beginning, found)
        return found

    def learn(self, tokens: Sequence[int], address: str) -> None:
        """Record that these tokens are read at an address."""
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
    """Yield a hash of each beginning, the shortest first. A collision costs no more than a
    prefill."""
    length, seen = 0, 0
    for end in _ENDS:
        if end > len(tokens):
            return
        seen = hash((seen, *tokens[length:end]))
        length = end
        yield seen
