"""The committed tokens of a sequence at which the draft guesses. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from slipstream.engine.errors import SequenceTooShortError


class CommittedText:
    """The tokens after ``base_length`` that the caller has stated.

    The event loop adds tokens. The model thread reads them, and writes ``guess``.
    """

    def __init__(self, base_length: int, tail: Sequence[int], price: float) -> None:
        self.base_length = base_length
        self.tokens = array("q", tail)
        self.price = price
        """Tokens that the target would choose in each second of the draft's work."""
        self.guess: tuple[int, tuple[int, ...]] = (self.length, ())
        """A length of the sequence, and the tokens that the draft expects to follow it."""

    @property
    def length(self) -> int:
        """The sequence's committed length."""
        return self.base_length + len(self.tokens)

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
        self.tokens.extend(added)
        start, guess = self.guess
        return guess[known - start : known - start + len(added)] != tuple(added)
