"""Makers of hints inside the verifier, each for one run. Pure.

They see each token as the target chooses it. Their hints lie in the same box as those of a draft,
so calibration, selection and price are the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.engine.hinting.hints import Candidate, Hint, Source
from slipstream.ngrams import NgramIndex

_NGRAM_LENGTH = 16
"""Most tokens of a hint from n-grams. More: long repetitions take fewer steps, but each wrong hint
has more tokens to judge."""

_NGRAM_ODDS = ((20, 0.9), (10, 0.75), (6, 0.6), (4, 0.5), (0, 0.4))
"""Least number of agreeing tokens, and the odds of a token that followed so many. Each is a maker
of its own, whose odds are calibrated."""


class InnerMaker(Protocol):
    """A maker of one run's hints."""

    @property
    def may_hint(self) -> bool:
        """True if there may be a hint for the next step."""

    def make(self, chosen: Sequence[int], kept: Sequence[Candidate]) -> Hint | None:
        """Return a hint at the tokens after the ``chosen`` ones, beside the hints that are
        ``kept``; None if there is none."""


class NgramMaker:
    """Proposes what followed the same tokens before."""

    may_hint = True

    def __init__(self) -> None:
        self._index = NgramIndex()

    def make(self, chosen: Sequence[int], kept: Sequence[Candidate]) -> Hint | None:
        """See `InnerMaker`. A continuation that still agrees is not looked up again."""
        if any(each.hint.source is Source.NGRAM for each in kept):
            return None
        found = self._index.find(chosen, _NGRAM_LENGTH)
        if found is None or not found[0]:
            return None
        tokens, agreeing = found
        number, odds = next((number, odds) for number, (least, odds) in enumerate(_NGRAM_ODDS) if agreeing >= least)
        survivals = tuple([odds**power for power in range(1, len(tokens) + 1)])
        length = len(chosen)
        return Hint(length, tokens, survivals, Source.NGRAM, number, length)


class GuessKeeper:
    """Passes on the guesses that the heads make for all runs together after a step."""

    def __init__(self) -> None:
        self._guess: Hint | None = None

    def put(self, guess: Hint) -> None:
        """Keep a guess for the next step."""
        self._guess = guess

    @property
    def may_hint(self) -> bool:
        """See `InnerMaker`."""
        return self._guess is not None

    def make(self, chosen: Sequence[int], kept: Sequence[Candidate]) -> Hint | None:
        """See `InnerMaker`. Each guess is returned once."""
        guess, self._guess = self._guess, None
        return guess
