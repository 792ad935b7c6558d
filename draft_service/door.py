"""The door of a draft service: the tokens that its callers speak, and the draft's own.

Items and hints speak the callers' tokens, the job and the engine the draft's. With one vocabulary
they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from draft_service.committed import CommittedText
from draft_service.lines import GuessLimits
from slipstream.engine.hinting.hints import Hint
from slipstream.sampling.rule import SamplingRule


class Start(NamedTuple):
    """A caller's statement that begins guesses."""

    base_length: int
    tail: Sequence[int]
    until_length: int
    least_length: int
    price: float
    rule: SamplingRule

    @property
    def length(self) -> int:
        """The committed length."""
        return self.base_length + len(self.tail)


class Work(NamedTuple):
    """A start in the draft's own tokens: what a job needs."""

    text: CommittedText
    rule: SamplingRule
    limits: GuessLimits


class Telling(Protocol):
    """A caller's statements about one sequence from a start on, in the caller's tokens."""

    @property
    def length(self) -> int:
        """The committed length."""

    def begin(self) -> Work:
        """Take the start in. Called once, when the job is made."""

    def add(self, position: int, tokens: Sequence[int], price: float) -> bool:
        """Take in what the target has chosen from a position on. Returns True if it contradicts the
        draft's guess. SequenceTooShortError."""

    def hint(self, hint: Hint) -> Hint | None:
        """Return a hint of the job in the caller's tokens; None if it says nothing there."""


class Door(Protocol):
    """Makes tellings of starts."""

    vocabulary_size: int
    """Number of tokens that callers may name."""

    speaks_draft: bool
    """True if callers speak the draft's own tokens, so that its odds are over theirs."""

    def open(self, handle: str, start: Start) -> Telling:
        """Return the telling of a start. SequenceTooShortError."""

    def forget(self, handle: str) -> None:
        """Forget a closed handle."""


class OneVocabulary:
    """The door of a draft that has its callers' vocabulary."""

    speaks_draft = True

    def __init__(self, vocabulary_size: int, context_length: int) -> None:
        self.vocabulary_size, self._context_length = vocabulary_size, context_length

    def open(self, handle: str, start: Start) -> Telling:
        """Return a telling whose tokens are the job's."""
        return _SameTokens(start, self._context_length)

    def forget(self, handle: str) -> None:
        """Do nothing: all is with the job."""


class _SameTokens:
    def __init__(self, start: Start, context_length: int) -> None:
        self._text = CommittedText(start.base_length, start.tail, start.price)
        limits = GuessLimits(min(start.until_length, context_length + 1), start.least_length)
        self._work = Work(self._text, start.rule, limits)

    @property
    def length(self) -> int:
        return self._text.length

    def begin(self) -> Work:
        return self._work

    def add(self, position: int, tokens: Sequence[int], price: float) -> bool:
        contradicts = self._text.add(position, tokens)
        self._text.price = price
        return contradicts

    def hint(self, hint: Hint) -> Hint | None:
        return hint
