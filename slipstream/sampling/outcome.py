"""Results of choosing a token besides the token, and requests for them. They are plain values
without numpy."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TOP_LOGPROB_COUNT = 20


@dataclass(frozen=True, slots=True)
class TokenDistribution:
    """A distribution over a few tokens: float32 ``probabilities``, normalised by their sum."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]

    def within(self, vocabulary_size: int) -> TokenDistribution:
        """Without the tokens that a smaller vocabulary does not have."""
        if all(token < vocabulary_size for token in self.tokens):
            return self
        kept = [(t, p) for t, p in zip(self.tokens, self.probabilities, strict=False) if t < vocabulary_size]
        return TokenDistribution(tuple(t for t, _ in kept), tuple(p for _, p in kept))


@dataclass(frozen=True, slots=True)
class LogprobRequest:
    """A request for log-probabilities: of the chosen tokens with ``top_count`` likeliest ones
    beside each, and with ``prompt`` of the tokens before them too, from the second on. With
    ``token_bytes`` readers get the bytes of each token."""

    top_count: int
    prompt: bool = False
    token_bytes: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token with its log-probability, and the likeliest tokens with theirs, likeliest first; all
    float32 values."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def distribution_fault(token: int, distribution: TokenDistribution, vocabulary_size: int) -> str | None:
    """Return the fault of the distribution that a proposed token is said to be drawn from; None if
    there is none."""
    tokens, probabilities = distribution.tokens, distribution.probabilities
    if len(tokens) != len(probabilities) or len(set(tokens)) != len(tokens):
        return "must have one probability for each of its tokens, each token once"
    if not all(0 <= t < vocabulary_size for t in tokens):
        return f"must hold token ids from 0 to {vocabulary_size - 1}"
    if not all(0 < p <= 1.001 for p in probabilities):
        return "must hold probabilities above 0 and at most 1"
    if token not in tokens:
        return f"must hold the proposed token {token}"
    return None
