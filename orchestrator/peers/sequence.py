"""What the orchestrator knows of one session's sequence on one peer. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

REASONS_TO_RESTATE = ("UNKNOWN_HANDLE", "SEQUENCE_TOO_SHORT")
"""What a peer says of a position that it cannot take up: nothing is wrong, it only has to be stated from further back."""


@dataclass(frozen=True, slots=True)
class Position:
    """What a request states: keep ``base_length`` tokens, then come the committed tokens ``tail``."""

    base_length: int
    tail: Sequence[int]


def _new_handle() -> str:
    return secrets.token_hex(8)


@dataclass(slots=True)
class PeerSequence:
    """A handle, the last round's number, and how many committed tokens the peer's cache surely holds.

    The handle is ours to name. Until the peer ``is_open`` for it, requests carry the terms on which to open it.
    ``address`` is the peer's, where there are several to choose from and one has been.
    """

    address: str | None = None
    handle: str = field(default_factory=_new_handle)
    is_open: bool = False
    round: int = 0
    known_length: int = 0

    def next_round(self) -> int:
        """A number the peer has not seen."""
        self.round += 1
        return self.round

    def position(self, tokens: Sequence[int], length: int | None = None) -> Position:
        """The position to state for the first ``length`` committed ``tokens``, or all. At least the last one is sent:
        logits are wanted there.

        A peer keeps what it holds of the tail beyond ``base_length``, so stating too little costs a few bytes and no forward.
        """
        length = len(tokens) if length is None else length
        base_length = min(self.known_length, length - 1)
        return Position(base_length, tokens[base_length:length])

    def answered(self) -> None:
        """The peer knows the handle."""
        self.is_open = True

    def learn(self, length: int) -> None:
        """The peer's cache holds at least this many committed tokens."""
        self.known_length = max(self.known_length, length)

    def limit(self, length: int) -> None:
        """The peer's cache, or the committed tokens it agrees with, is at most this long."""
        self.known_length = min(self.known_length, length)

    def correct(self, reason: str, metadata: Mapping[str, str]) -> None:
        """The peer refused a position, for one of REASONS_TO_RESTATE: the next one will be right."""
        if reason == "UNKNOWN_HANDLE":
            self.forget()
        else:
            self.limit(int(metadata.get("cached_length", 0)))

    def forget(self) -> None:
        """The peer does not know the handle any more."""
        self.handle = _new_handle()
        self.is_open = False
        self.round = self.known_length = 0
