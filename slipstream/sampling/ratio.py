"""The ratio test: a token x drawn from the draft's q is accepted with min(1, p(x)/q(x)), else one is drawn from max(0, p-q).

Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding" (2023). The text follows p exactly;
which text it is depends on the draft. Every draw is counter-based, so that a repeated round cannot roll again, and each
kind of draw has noise of its own: noise shared between the draft's token and the recovered one would bias the text.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.sampling.noise import Domain, gumbel, uniform
from slipstream.sampling.outcome import TokenDistribution
from slipstream.sampling.row import Choice, Proposed
from slipstream.sampling.rule import SamplingRule

Probabilities = NDArray[np.float64]


def draw(logits: torch.Tensor, rule: SamplingRule, position: int) -> Choice:
    """A draft's token, from its filtered ``logits`` ``[vocabulary]`` cut to the rule's ``proposal_top_k`` likeliest.

    The choice carries the distribution, rounded to float32 before the draw: what is sent is exactly what was drawn from.
    """
    top = logits.topk(min(rule.proposal_top_k, logits.shape[0]))
    finite = torch.isfinite(top.values)
    tokens = top.indices[finite].cpu().numpy()
    if len(tokens) == 0:  # a row of NaN or without any allowed token: any guess will do, and it will be rejected
        return Choice(0, float("inf"), TokenDistribution((0,), (1.0,)))
    sent = top.values[finite].double().softmax(dim=0).float().cpu().numpy()
    tokens, sent = tokens[sent > 0], sent[sent > 0]
    token = _sample(tokens, sent.astype(np.float64), rule.seed, position, Domain.PROPOSAL)
    return Choice(token, float("inf"), TokenDistribution(tuple(tokens.tolist()), tuple(sent.tolist())))


def decide(logits: torch.Tensor, rule: SamplingRule, position: int, proposed: Proposed) -> Choice:
    """The proposed token if the test accepts it, and else the recovered one, which is never the proposed one.

    ``logits`` ``[vocabulary]`` are the target's, filtered. The margin is infinite: there is no next best to speak of.
    """
    p: Probabilities = logits.double().softmax(dim=0).cpu().numpy()
    tokens = np.array(proposed.distribution.tokens, dtype=np.int64)
    q = np.array(proposed.distribution.probabilities, dtype=np.float64)
    q /= q.sum()
    of_token = float(q[tokens == proposed.token].sum())
    coin = float(uniform(*_key(rule.seed, position, np.zeros(1, np.int64)), Domain.ACCEPTANCE)[0])
    if coin * of_token < p[proposed.token]:
        return Choice(proposed.token, float("inf"))
    residual = p.copy()
    np.subtract.at(residual, tokens, q)
    residual[proposed.token] = 0.0  # it is at most that; duplicates in a hostile q must not say otherwise
    left = residual > 0
    if not left.any():  # only rounding can reject where p equals q
        left, residual = p > 0, p
    candidates = left.nonzero()[0]
    token = _sample(candidates, residual[candidates], rule.seed, position, Domain.RECOVERY)
    return Choice(token, float("inf"))


def _sample(tokens: NDArray[np.int64], weights: Probabilities, seed: int, position: int, domain: Domain) -> int:
    perturbed = np.log(weights) + gumbel(*_key(seed, position, tokens), domain)
    return int(tokens[int(perturbed.argmax())])


def _key(
    seed: int, position: int, tokens: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
    words = tokens.astype(np.uint64)
    return np.full_like(words, seed), np.full_like(words, position), words
