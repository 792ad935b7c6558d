"""Logit filters, row by row and each row by its own rule, as transformers' processors do them and in their order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.sampling.rule import SamplingRule


def apply_filters(logits: torch.Tensor, rules: Sequence[SamplingRule], positions: Sequence[int]) -> torch.Tensor:
    """Logits as the rules leave them: float32 ``[rows, vocabulary]``, removed tokens at -inf.

    ``positions[r]`` is the absolute position of the token that row r chooses. The order is transformers': end tokens
    held back, temperature, top-k, top-p, min-p. A row's result does not depend on the other rows.
    """
    logits = _hold_back_end_tokens(logits.float(), rules, positions)
    if all(rule.temperature == 0 for rule in rules):
        return logits
    logits = logits / _column([rule.temperature or 1.0 for rule in rules], logits)
    sampled = [rule if rule.temperature else SamplingRule() for rule in rules]
    if any(rule.top_k for rule in sampled):
        logits = _top_k(logits, [rule.top_k for rule in sampled])
    if any(rule.top_p < 1 for rule in sampled):
        logits = _top_p(logits, [rule.top_p for rule in sampled])
    if any(rule.min_p for rule in sampled):
        logits = _min_p(logits, [rule.min_p for rule in sampled])
    return logits


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)


def _hold_back_end_tokens(
    logits: torch.Tensor, rules: Sequence[SamplingRule], positions: Sequence[int]
) -> torch.Tensor:
    held = [
        (row, token)
        for row, (rule, position) in enumerate(zip(rules, positions, strict=True))
        if position < rule.first_end_position
        for token in rule.end_token_ids
    ]
    if not held:
        return logits
    logits = logits.clone()
    rows, tokens = zip(*held, strict=True)
    logits[list(rows), list(tokens)] = -torch.inf
    return logits


def _top_k(logits: torch.Tensor, ks: Sequence[int]) -> torch.Tensor:
    vocabulary_size = logits.shape[1]
    wanted = torch.tensor([min(k or vocabulary_size, vocabulary_size) for k in ks], device=logits.device)
    largest = logits.topk(max(min(k, vocabulary_size) for k in ks)).values
    kth = largest.gather(1, (wanted - 1).clamp(max=largest.shape[1] - 1).unsqueeze(1))
    off = torch.tensor([k == 0 for k in ks], device=logits.device).unsqueeze(1)
    return logits.masked_fill((logits < kth) & ~off, -torch.inf)


def _top_p(logits: torch.Tensor, ps: Sequence[float]) -> torch.Tensor:
    # A stable sort: which of two equal logits survives must not depend on the batch.
    ascending, order = logits.sort(dim=-1, stable=True)
    # The subtraction is done in Python's float64 and rounded once, as transformers does it for a scalar.
    removed = ascending.softmax(dim=-1).cumsum(dim=-1) <= _column([1 - p for p in ps], logits)
    removed[:, -1] = False
    off = torch.tensor([p == 1 for p in ps], device=logits.device).unsqueeze(1)
    return logits.masked_fill((removed & ~off).scatter(1, order, removed & ~off), -torch.inf)


def _min_p(logits: torch.Tensor, ps: Sequence[float]) -> torch.Tensor:
    probabilities = logits.softmax(dim=-1)
    threshold = _column(ps, logits) * probabilities.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < threshold, -torch.inf)
