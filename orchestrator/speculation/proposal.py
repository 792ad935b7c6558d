"""Makers of hints and proposals, and what a draft proposes to the ratio test. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile

from slipstream.sampling.outcome import TokenDistribution, distribution_fault


class Source(Enum):
    """The maker of a hint or a proposal."""

    DRAFT = "draft"
    """The draft service."""
    NGRAM = "ngram"
    """The session's own tokens, where they repeat themselves."""
    PREDICTION = "prediction"
    """The caller's text that the answer probably contains."""
    HEADS = "heads"
    """Heads on the target's hidden states, inside the verifier."""
    OTHER = "other"
    """Another maker of hints."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens to check, with the distributions that they were drawn from."""

    tokens: tuple[int, ...]
    distributions: tuple[TokenDistribution, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> Proposal:
        """Return the first ``length`` tokens."""
        if length >= len(self.tokens):
            return self
        return replace(
            self,
            tokens=self.tokens[:length],
            distributions=self.distributions[:length],
        )

    def usable(self, draft_length: int, vocabulary_size: int) -> Proposal:
        """Return the part that a target of that vocabulary can check: it ends at a token that the
        target does not have.

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
        """Return the fault in the distributions; None if there is none."""
        if len(self.distributions) != len(self.tokens):
            return "there must be one for each token"
        drawn = zip(self.tokens, self.distributions, strict=True)
        return next((fault for pair in drawn if (fault := distribution_fault(*pair, vocabulary_size))), None)


NOTHING_PROPOSED = Proposal(())
