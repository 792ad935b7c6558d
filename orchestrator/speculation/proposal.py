"""A proposal of any source."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile
from typing import NamedTuple

from slipstream.sampling.outcome import TokenDistribution, distribution_fault


class Source(Enum):
    """Who made a proposal."""

    DRAFT = "draft"
    """The draft service."""
    NGRAM = "ngram"
    """The session's own tokens, where they repeat themselves."""
    PREDICTION = "prediction"
    """The caller's text that the answer probably contains."""


class Confidence(NamedTuple):
    """How sure a draft is of a token: its log-probability, and its lead over the next best in
    perturbed logits."""

    logprob: float
    margin: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens to check; for the ratio test with the distributions they were drawn from.

    ``confidences`` are the draft's, one a token; none from another source.
    """

    tokens: tuple[int, ...]
    distributions: tuple[TokenDistribution, ...] = ()
    confidences: tuple[Confidence, ...] = ()
    source: Source = Source.DRAFT

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> Proposal:
        """Its first ``length`` tokens."""
        if length >= len(self.tokens):
            return self
        return replace(
            self,
            tokens=self.tokens[:length],
            distributions=self.distributions[:length],
            confidences=self.confidences[:length],
        )

    def ending(self, ends: Container[int]) -> int | None:
        """How many tokens it has up to the first that ends the turn, that one included; None if
        none does."""
        return next((count for count, token in enumerate(self.tokens, 1) if token in ends), None)

    def past(self, length: int) -> Proposal:
        """What comes after its first ``length`` tokens."""
        if length == 0:
            return self
        return replace(
            self,
            tokens=self.tokens[length:],
            distributions=self.distributions[length:],
            confidences=self.confidences[length:],
        )

    def usable(self, draft_length: int, vocabulary_size: int) -> Proposal:
        """The part that a target of that vocabulary can check: it ends at a token the target does
        not have.

        Distributions lose the tokens that the target does not have: the tokens kept were drawn from
        what is left.
        """
        known = self.tokens[:draft_length]
        if known and (min(known) < 0 or max(known) >= vocabulary_size):
            known = tuple(takewhile(lambda token: 0 <= token < vocabulary_size, known))
        proposal = self.cut(len(known))
        if not proposal.distributions:
            return proposal
        return replace(proposal, distributions=tuple(d.within(vocabulary_size) for d in proposal.distributions))

    def fault(self, vocabulary_size: int) -> str | None:
        """What is wrong with the distributions, if anything is."""
        if len(self.distributions) != len(self.tokens):
            return "there must be one for each token"
        drawn = zip(self.tokens, self.distributions, strict=True)
        return next((fault for pair in drawn if (fault := distribution_fault(*pair, vocabulary_size))), None)


NOTHING_PROPOSED = Proposal(())


class Branch(NamedTuple):
    """What follows if a verification answers (``accepted_count``, ``next_token``); for a plain
    proposal, where nothing is in flight, what follows the committed tokens: ``next_token`` is
    None."""

    accepted_count: int
    next_token: int | None
    proposal: Proposal

    def path(self, in_flight: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """All tokens from the committed ones on, and how many of them come before the branch's own
        proposal."""
        if self.next_token is None:
            return self.proposal.tokens, 0
        before = (*in_flight[: self.accepted_count], self.next_token)
        return (*before, *self.proposal.tokens), len(before)
