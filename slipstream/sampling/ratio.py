"""The ratio test: a token x drawn from the draft's q is accepted with min(1, p(x)/q(x)), else one
is drawn from max(0, p-q).

Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding" (2023). The
text follows p exactly; which text it is depends on the draft. Every draw is counter-based, so that
a repeated round cannot roll again, and each kind of draw has noise of its own: noise shared between
the draft's token and the recovered one would bias the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.sampling.kernel import Domain, Floats32, coin
from slipstream.sampling.likeliest import likeliest
from slipstream.sampling.outcome import TokenDistribution
from slipstream.sampling.row import Choice, Proposed
from slipstream.sampling.rule import SamplingRule

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


def draw(logits: Floats32, rules: Sequence[SamplingRule], positions: Sequence[int]) -> list[Choice]:
    """Return a draft's tokens, drawn from its filtered ``logits`` ``[rows, vocabulary]``, each row
    cut to its ``proposal_top_k`` likeliest tokens.

    A choice carries its distribution, rounded to float32 before the draw: what is sent is exactly
    what was drawn from.
    """
    choices = []
    for row, rule, position in zip(logits, rules, positions, strict=True):
        tokens = likeliest(row, min(rule.proposal_top_k, len(row)))
        tokens = tokens[row[tokens] > -np.inf]  # fewer where the filters left fewer
        sent = _probabilities(row[tokens]).astype(np.float32)
        pick = _drawn_from(sent, coin(rule.seed, position, Domain.PROPOSAL))
        choices.append(_drawn(tokens, sent, pick))
    return choices


def _probabilities(row: Floats32) -> Floats:
    """Return the softmax in float64."""
    weights = np.exp(row.astype(np.float64) - row.max())
    normalised: Floats = weights * (1 / weights.sum())
    return normalised


def _drawn(tokens: Tokens, sent: NDArray[np.float32], pick: int) -> Choice:
    likely = sent > 0
    distribution = TokenDistribution(tuple(tokens[likely].tolist()), tuple(sent[likely].tolist()))
    return Choice(int(tokens[pick]), float("inf"), distribution=distribution)


def decide(
    logits: Floats32, rules: Sequence[SamplingRule], positions: Sequence[int], proposed: Sequence[Proposed]
) -> list[Choice]:
    """For each row the proposed token if the test accepts it, and else the recovered one, which is
    never the proposed one.

    ``logits`` ``[rows, vocabulary]`` are the target's, filtered. The margin is infinite: there is
    no next best to speak of.
    """
    p = np.stack([_probabilities(row) for row in logits])
    at = np.arange(len(proposed))
    tokens = np.array([draft.token for draft in proposed])
    q = np.stack([_dense(draft.distribution, p.shape[1]) for draft in proposed])
    coins = np.array(
        [coin(rule.seed, position, Domain.ACCEPTANCE) for rule, position in zip(rules, positions, strict=True)]
    )
    rejected = (coins * q[at, tokens] >= p[at, tokens]).nonzero()[0]
    if len(rejected):
        tokens[rejected] = _recover(
            p[rejected],
            q[rejected],
            tokens[rejected],
            [rules[row] for row in rejected],
            [positions[row] for row in rejected],
        )
    return [Choice(token, float("inf")) for token in tokens.tolist()]


def _dense(distribution: TokenDistribution, size: int) -> Floats:
    q = np.zeros(size)
    q[list(distribution.tokens)] = distribution.probabilities
    normalised: Floats = q / q.sum()
    return normalised


def _recover(p: Floats, q: Floats, rejected: Tokens, rules: Sequence[SamplingRule], positions: Sequence[int]) -> Tokens:
    """A draw from each row of max(0, p - q), for rows ``[rows, vocabulary]`` whose token was
    rejected."""
    residual = np.maximum(p - q, 0.0)
    residual[np.arange(len(rejected)), rejected] = 0.0  # it was rejected because it is that, but for rounding
    empty = ~residual.any(axis=1)  # only rounding can reject where p equals q
    residual[empty] = p[empty]
    picks = [
        _drawn_from(left, coin(rule.seed, position, Domain.RECOVERY))
        for left, rule, position in zip(residual, rules, positions, strict=True)
    ]
    return np.array(picks)


def _drawn_from(weights: NDArray[np.floating], where: float) -> int:
    """The index at a fraction ``where`` in (0, 1) of the way through the weights; never one without
    any."""
    reached = weights.cumsum(dtype=np.float64)
    return int(np.searchsorted(reached, where * reached[-1], side="right").clip(max=np.flatnonzero(weights)[-1]))
