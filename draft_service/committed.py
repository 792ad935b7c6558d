"""The committed tokens of a sequence at which the draft guesses. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from slipstream.engine.errors import SequenceTooShortError


class Remainder(Protocol):
    """The known text after the committed tokens, whose own tokens may still change."""

    tokens: tuple[int, ...]
    """Tokens of it, as it is now."""

    def is_said_by(self, path: Sequence[int]) -> bool:
        """Return whether guessed tokens begin with this text."""


class _NoRemainder:
    tokens: tuple[int, ...] = ()

    def is_said_by(self, path: Sequence[int]) -> bool:
        return True


NO_REMAINDER: Remainder = _NoRemainder()


class CommittedText:
    """The tokens after ``base_length`` that the caller has stated.

    The event loop adds tokens. The model thread reads them, and writes ``guess``.
    """

    def __init__(self, base_length: int, tail: Sequence[int], price: float) -> None:
        self.base_length = base_length
        self.tokens = array("q", tail)
        self.known: tuple[int, Remainder] = (self.base_length + len(self.tokens), NO_REMAINDER)
        """The sequence's committed length, and what is known of the tokens after it. Both are
        replaced together, after tokens are added."""
        self.price = price
        """Tokens that the target would choose in each second of the draft's work."""
        self.guess: tuple[int, tuple[int, ...]] = (self.length, ())
        """A length of the sequence, and the tokens that the draft expects to follow it."""

    @property
    def length(self) -> int:
        """The sequence's committed length."""
        return self.known[0]

    def add(self, position: int, tokens: Sequence[int]) -> bool:
        """Add the tokens after ``position`` that are not known yet.

        Returns True if the guess says other tokens, or does not reach as far. SequenceTooShortError
        if tokens before ``position`` are missing.
        """
        known = self.length
        if position > known:
            raise SequenceTooShortError(
                f"tokens from position {position} on were committed, but only {known} are known; start again",
                cached_length=known,
            )
        added = tokens[known - position :]
        self.extend(added)
        start, guess = self.guess
        return guess[known - start : known - start + len(added)] != tuple(added)

    def extend(self, added: Sequence[int], remainder: Remainder = NO_REMAINDER) -> None:
        """Add the next committed tokens, and what is known after them."""
        self.tokens.extend(added)
        self.known = (self.base_length + len(self.tokens), remainder)
