"""The loss of a draft: the share of its tokens that the target would not accept.

Draft and target add the same Gumbel noise to their logits. So a draft with probabilities q and a
target with probabilities p choose the same token with probability
``sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)`` (Daliri, Musco, Suresh, "Coupling without
communication and drafter-invariant speculative decoding", 2024).

Of the target only the likeliest tokens are known. All others are one *bucket*: the inner sums count
it as one token, and the outer sum leaves it out. If its probabilities are P and Q, the result is
off by min(P, Q) at most, in either direction.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

LEAST = 1e-12
"""Probabilities are at least this, so that no quotient is infinite."""

GREEDY_TEMPERATURE = 0.5
"""Temperature of the draft in the loss for greedy targets. An argmax has no gradient, so the
draft's probability of the target's choice stands for it."""

_NO_LOGIT = -1e4


def expected_acceptance(p: torch.Tensor, q: torch.Tensor, *, bucket: bool = True) -> torch.Tensor:
    """Return the probability ``[rows]`` that coupled sampling chooses the same token from ``p`` and
    from ``q``, both ``[rows, tokens]``. With a ``bucket`` the last one is not one token.

    ``p_j / p_i`` is the larger quotient exactly if ``p_j / q_j`` is at least ``p_i / q_i``. So with
    the tokens sorted by p / q both parts of the inner sum are running sums.
    """
    p, q = p.clamp_min(LEAST), q.clamp_min(LEAST)
    order = (p / q).argsort(dim=-1, descending=True, stable=True)
    p, q = p.gather(-1, order), q.gather(-1, order)
    before = p.cumsum(-1)
    after = q.flip(-1).cumsum(-1).flip(-1) - q
    odds = p * q / (before * q + after.clamp_min(0) * p)
    return odds.masked_fill(order == order.shape[-1] - 1, 0).sum(-1) if bucket else odds.sum(-1)


def target_probabilities(top_logprobs: torch.Tensor, temperature: float, vocabulary_size: int) -> torch.Tensor:
    """Return ``[rows, K + 1]``: the probabilities at ``temperature`` of the target's K likeliest
    tokens, whose log-probabilities at temperature 1 are ``[rows, K]``, and of the bucket.

    How the bucket's probability is spread is not known, so it gets the most that is possible: below
    temperature 1 if it lies in tokens as likely as the last known one, above if it is even.
    """
    if temperature == 0:
        return F.one_hot(torch.zeros_like(top_logprobs[:, 0], dtype=torch.long), top_logprobs.shape[1] + 1).float()
    bucket = (1 - top_logprobs.exp().sum(-1, keepdim=True)).clamp_min(LEAST).log()
    if temperature <= 1:
        bucket = bucket + top_logprobs[:, -1:] * (1 / temperature - 1)
    else:
        tail_count = max(1, vocabulary_size - top_logprobs.shape[1])
        bucket = bucket / temperature + math.log(tail_count) * (1 - 1 / temperature)
    return torch.cat([top_logprobs / temperature, bucket], dim=-1).softmax(-1)


def draft_logprobs(logits: torch.Tensor, top_ids: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return ``[rows, K + 1]``: the draft's log-probabilities at ``temperature`` of the tokens
    ``top_ids`` [rows, K], and of all others together. Its ``logits`` are ``[rows, vocabulary]``.

    The draft's embedding may have fewer rows than the target's, for the same tokenizer.
    """
    missing = int(top_ids.max()) + 1 - logits.shape[-1] if top_ids.numel() else 0
    if missing > 0:
        logits = F.pad(logits, (0, missing), value=_NO_LOGIT)
    top = (logits.float() / temperature).log_softmax(-1).gather(-1, top_ids)
    bucket = (1 - top.exp().sum(-1, keepdim=True)).clamp_min(LEAST).log()
    return torch.cat([top, bucket], dim=-1)


def divergence(p: torch.Tensor, q_logprobs: torch.Tensor) -> torch.Tensor:
    """Return the KL divergence ``[rows]`` of a draft from ``p``: with a bucket, a lower bound."""
    return (p * (p.clamp_min(LEAST).log() - q_logprobs)).sum(-1)


def rejection(
    logits: torch.Tensor,
    top_ids: torch.Tensor,
    top_logprobs: torch.Tensor,
    *,
    temperature: float,
    kl_weight: float,
    vocabulary_size: int,
) -> torch.Tensor:
    """Return the loss, a scalar: 1 - expected acceptance at ``temperature``, plus ``kl_weight``
    times the divergence at temperature 1, as means over the rows.

    Where the draft gives the target's tokens hardly any probability the acceptance is nearly flat.
    The divergence is steep there.
    """
    p = target_probabilities(top_logprobs, temperature, vocabulary_size)
    q = draft_logprobs(logits, top_ids, temperature or GREEDY_TEMPERATURE)
    loss = 1 - expected_acceptance(p, q.exp()).mean()
    if kl_weight:
        plain = target_probabilities(top_logprobs, 1.0, vocabulary_size)
        loss = loss + kl_weight * divergence(plain, draft_logprobs(logits, top_ids, 1.0)).mean()
    return loss
