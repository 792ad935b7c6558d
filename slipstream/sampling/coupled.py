"""Coupled sampling: draft and target add the same noise to their own logits and take the argmax.

A draft token is accepted exactly if it equals the target's own choice, so the text never depends on the draft.
Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding" (2024).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slipstream.sampling.filters import apply_filters
from slipstream.sampling.noise import GUMBEL_SPAN, gumbel
from slipstream.sampling.rule import SamplingRule


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token and its lead over the next best in perturbed logits; infinite if no other could win."""

    token: int
    margin: float


def choose(logits: torch.Tensor, rules: Sequence[SamplingRule], positions: Sequence[int]) -> list[Choice]:
    """The token each row chooses: ``argmax_v(filtered_logits[v] + gumbel(seed, position, v))``, noise-free at temperature 0.

    ``logits`` is ``[rows, vocabulary]`` of any float dtype; ``positions[r]`` is the absolute position of the token that
    row r chooses. Equal values go to the lower token id. A row's choice does not depend on the other rows.
    """
    filtered = apply_filters(logits, rules, positions)
    sampled = [rule.temperature > 0 for rule in rules]
    if not any(sampled):
        return _greedy(filtered)
    choices = _sample(filtered, rules, positions)
    if not all(sampled):
        greedy = _greedy(filtered)
        choices = [choices[row] if sampled[row] else greedy[row] for row in range(len(rules))]
    return choices


def _greedy(logits: torch.Tensor) -> list[Choice]:
    best = logits.topk(2)
    tokens, margins = best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()
    if 0.0 in margins:  # topk does not say which of equals it takes, argmax takes the first
        tokens = logits.argmax(dim=-1).tolist()
    return [Choice(token, margin) for token, margin in zip(tokens, margins, strict=True)]


def _sample(logits: torch.Tensor, rules: Sequence[SamplingRule], positions: Sequence[int]) -> list[Choice]:
    # Exact pruning: noise spans GUMBEL_SPAN, so a token further below the largest logit cannot win.
    contenders = logits >= logits.amax(dim=-1, keepdim=True) - GUMBEL_SPAN - 1e-3
    rows_and_tokens = contenders.nonzero()
    values = logits[contenders].cpu().numpy().astype(np.float64)
    rows, tokens = rows_and_tokens.cpu().numpy().astype(np.uint64).T
    row_index = rows.astype(np.intp)
    seeds = np.array([rule.seed for rule in rules], dtype=np.uint64)[row_index]
    at = np.array(positions, dtype=np.uint64)[row_index]
    perturbed = values + gumbel(seeds, at, tokens)
    bounds = np.searchsorted(row_index, np.arange(len(rules) + 1))
    choices = []
    for start, end in itertools.pairwise(bounds):
        if start == end:  # a row of NaN: nothing can be chosen in it, and nothing beside it may suffer
            choices.append(Choice(0, 0.0))
            continue
        row = perturbed[start:end]
        best = int(row.argmax())
        lead = float(row[best] - np.partition(row, -2)[-2]) if len(row) > 1 else float("inf")
        choices.append(Choice(int(tokens[start + best]), lead))
    return choices


def accepted_count(proposal: Sequence[int], choices: Sequence[int]) -> int:
    """Length of the longest prefix of ``proposal`` that equals the target's own choices."""
    count = 0
    while count < len(proposal) and proposal[count] == choices[count]:
        count += 1
    return count
