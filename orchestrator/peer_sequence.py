"""What the orchestrator knows of one session's sequence on one peer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """What a request states: keep ``base_length`` tokens, then come the committed tokens ``tail``."""

    base_length: int
    tail: Sequence[int]


@dataclass(slots=True)
class PeerSequence:
    """A handle, if one is open, the last round's number, and how many committed tokens the peer's cache surely holds.

    ``address`` is the peer's, where there are several to choose from and one has been.
    """

    address: str | None = None
    handle: str | None = None
    round: int = 0
    known_length: int = 0

    def next_round(self) -> int:
        """A number the peer has not seen."""
        self.round += 1
        return self.round

    def position(self, tokens: Sequence[int]) -> Position:
        """The position to state for the committed ``tokens``. At least the last one is sent: logits are wanted there."""
        base_length = min(self.known_length, len(tokens) - 1)
        self.known_length = base_length  # until an answer says more: the request itself cuts the peer's cache to it
        return Position(base_length, tokens[base_length:])

    def learn(self, length: int) -> None:
        """The peer's cache holds this many committed tokens."""
        self.known_length = length

    def limit(self, length: int) -> None:
        """The peer's cache, or the committed tokens it agrees with, is at most this long."""
        self.known_length = min(self.known_length, length)

    def forget(self) -> None:
        """The peer does not know the handle any more."""
        self.handle = None
        self.known_length = 0
