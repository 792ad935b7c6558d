"""Coupled sampling: draft and target add the same noise to their own logits and take the argmax.

A draft token is accepted exactly if it equals the target's own choice, so the text never depends on the draft.
Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding" (2024).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.sampling.noise import GUMBEL_SPAN, gumbel
from slipstream.sampling.row import Choice

Floats = NDArray[np.float64]

_DRAFT_SPAN = 8.0
"""Logits below the largest within which a draft looks: one token in a few thousand is chosen from further below."""


def choose_likeliest(logits: torch.Tensor, candidate_count: int | None = None) -> list[Choice]:
    """Each row's largest logit, the lower token id among equals; ``logits`` is ``[rows, vocabulary]``.

    With a ``candidate_count``, 0 included, the choices are a draft's: with log-probabilities, and that many candidates.
    """
    best = logits.topk(min(max(2, candidate_count or 0), logits.shape[1]))
    tokens, margins = best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()
    if 0.0 in margins:  # topk does not say which of equals it takes, argmax takes the first
        tokens = logits.argmax(dim=-1).tolist()
    choices = [Choice(token, margin) for token, margin in zip(tokens, margins, strict=True)]
    if candidate_count is not None:
        logprobs = logits.log_softmax(dim=-1).gather(1, best.indices[:, :1])[:, 0].tolist()
        for choice, logprob in zip(choices, logprobs, strict=True):
            choice.logprob = logprob
    if candidate_count:
        for choice, ids, values in zip(choices, best.indices.tolist(), best.values.tolist(), strict=True):
            choice.candidates = tuple(zip(ids, values, strict=True))
    return choices


def choose_coupled(
    logits: torch.Tensor, seeds: Sequence[int], positions: Sequence[int], candidate_count: int | None = None
) -> list[Choice]:
    """``argmax_v(logits[v] + gumbel(seed, position, v))`` for each row of filtered ``logits`` ``[rows, vocabulary]``,
    whose largest is finite.

    ``candidate_count`` as in `choose_likeliest`; candidates go by their perturbed logits.
    """
    # Exact pruning: noise spans GUMBEL_SPAN, so a token further below the largest logit cannot win. A draft only guesses.
    span = GUMBEL_SPAN + 1e-3 if candidate_count is None else _DRAFT_SPAN
    contenders = logits >= logits.amax(dim=-1, keepdim=True) - span
    rows_and_tokens = contenders.nonzero()
    values = logits[contenders].cpu().numpy().astype(np.float64)
    rows, tokens = rows_and_tokens.cpu().numpy().astype(np.uint64).T
    row_index = rows.astype(np.intp)
    noise = gumbel(np.array(seeds, dtype=np.uint64)[row_index], np.array(positions, dtype=np.uint64)[row_index], tokens)
    perturbed = values + noise
    bounds = np.searchsorted(row_index, np.arange(len(seeds) + 1))
    choices = []
    for start, end in itertools.pairwise(bounds):
        row = perturbed[start:end]
        best = int(row.argmax())
        lead = float(row[best] - np.partition(row, -2)[-2]) if len(row) > 1 else float("inf")
        choice = Choice(int(tokens[start + best]), lead)
        if candidate_count is not None:
            _describe(choice, tokens[start:end], values[start:end], row, best, candidate_count)
        choices.append(choice)
    return choices


def _describe(
    choice: Choice, tokens: NDArray[np.uint64], values: Floats, perturbed: Floats, best: int, candidate_count: int
) -> None:
    """Give a draft's choice its log-probability and its candidates."""
    top = float(values.max())
    choice.logprob = float(values[best]) - top - math.log(float(np.exp(values - top).sum()))
    if candidate_count:
        order = np.argsort(-perturbed)[:candidate_count]
        choice.candidates = tuple(zip(tokens[order].tolist(), perturbed[order].tolist(), strict=True))


def accepted_count(proposal: Sequence[int], choices: Sequence[int]) -> int:
    """Length of the longest prefix of ``proposal`` that equals the target's own choices."""
    count = 0
    while count < len(proposal) and proposal[count] == choices[count]:
        count += 1
    return count
