"""Logit filters, row by row and each row by its own rule, as transformers' processors do them and in their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule

_OFF = SamplingRule()


def apply_filters(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Logits as the rows' rules leave them: float32 ``[rows, vocabulary]``, removed tokens at -inf.

    The order is transformers': logit bias, penalties, banned tokens, end tokens held back, allowed tokens, structure; and
    for sampled rows temperature, top-k, top-p, min-p, typical-p. A row's result does not depend on the other rows.
    """
    logits = _process(logits, rows)
    rules = [row.rule for row in rows]
    if all(rule.temperature == 0 for rule in rules):
        return logits
    logits = logits / _column([rule.temperature or 1.0 for rule in rules], logits)
    sampled = [rule if rule.temperature else _OFF for rule in rules]
    if any(rule.top_k for rule in sampled):
        logits = _top_k(logits, [rule.top_k for rule in sampled])
    if any(rule.top_p < 1 for rule in sampled):
        logits = _top_p(logits, [rule.top_p for rule in sampled])
    if any(rule.min_p for rule in sampled):
        logits = _min_p(logits, [rule.min_p for rule in sampled])
    if any(rule.typical_p < 1 for rule in sampled):
        logits = _typical_p(logits, [rule.typical_p for rule in sampled])
    return logits


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)


def _process(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """What transformers calls processors: they look at tokens, and greedy rows have them too."""
    processed = [index for index, row in enumerate(rows) if is_processed(row)]
    given, logits = logits, logits.float()
    if not processed:
        return logits
    if logits is given:  # a copy only where the conversion made none
        logits = logits.clone()
    contexts: dict[int, NDArray[np.int64]] = {}  # a step's rows share their sequence's tokens and their rule
    excluded: dict[int, torch.Tensor] = {}
    for index in processed:
        row = rows[index]
        if _penalises(row.rule) and id(row.context) not in contexts:
            contexts[id(row.context)] = np.array(row.context, dtype=np.int64)
        if id(row.rule) not in excluded:
            excluded[id(row.rule)] = _excluded(row.rule, logits[index])
        _process_row(logits[index], row, contexts.get(id(row.context)), excluded[id(row.rule)])
    return logits


def is_processed(row: Row) -> bool:
    """Whether a row's rule changes its logits before they are sampled from."""
    rule = row.rule
    return (
        row.position < rule.first_end_position
        or row.allowed is not None
        or _penalises(rule)
        or bool(rule.logit_bias or rule.banned_token_ids or rule.allowed_token_ids)
    )


def _penalises(rule: SamplingRule) -> bool:
    return rule.repetition_penalty != 1 or rule.presence_penalty != 0 or rule.frequency_penalty != 0


def _excluded(rule: SamplingRule, like: torch.Tensor) -> torch.Tensor:
    """Which tokens a rule never lets be chosen, bool ``[vocabulary]``."""
    excluded = torch.full_like(like, bool(rule.allowed_token_ids), dtype=torch.bool)
    excluded[list(rule.allowed_token_ids)] = False
    excluded[list(rule.banned_token_ids)] = True
    return excluded


def _process_row(logits: torch.Tensor, row: Row, context: NDArray[np.int64] | None, excluded: torch.Tensor) -> None:
    """In place, for one row of logits ``[vocabulary]``."""
    rule = row.rule
    if rule.logit_bias:
        tokens, biases = zip(*rule.logit_bias, strict=True)
        logits[list(tokens)] += torch.tensor(biases, dtype=logits.dtype, device=logits.device)
    if context is not None and _penalises(rule):
        _penalise(logits, rule, context[: row.position])
    logits.masked_fill_(excluded, -torch.inf)
    if row.position < rule.first_end_position and rule.end_token_ids:
        logits[list(rule.end_token_ids)] = -torch.inf
    if row.allowed is not None:
        logits.masked_fill_(torch.from_numpy(~row.allowed).to(logits.device), -torch.inf)


def _penalise(logits: torch.Tensor, rule: SamplingRule, context: NDArray[np.int64]) -> None:
    """Repetition as in transformers, over the whole context; frequency and presence as in OpenAI's API, over what was
    generated in this turn."""
    if rule.repetition_penalty != 1:
        tokens = _unique(context, logits)[0]
        scores = logits[tokens]
        logits[tokens] = torch.where(scores < 0, scores * rule.repetition_penalty, scores / rule.repetition_penalty)
    if rule.presence_penalty or rule.frequency_penalty:
        tokens, counts = _unique(context[rule.first_generated_position :], logits)
        logits[tokens] -= rule.frequency_penalty * counts
        logits[tokens] -= rule.presence_penalty


def _unique(context: NDArray[np.int64], logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The context's tokens that the vocabulary has, each once, and how often each occurs, as float32."""
    tokens, counts = np.unique(context[context < logits.shape[0]], return_counts=True)
    return (
        torch.from_numpy(tokens).to(logits.device),
        torch.from_numpy(counts.astype(np.float32)).to(logits.device),
    )


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


def _typical_p(logits: torch.Tensor, ps: Sequence[float]) -> torch.Tensor:
    """Meister et al., "Locally typical sampling" (2022): the tokens whose surprise is nearest to the entropy."""
    logprobs = logits.log_softmax(dim=-1)
    entropy = -(logprobs * logprobs.exp()).nansum(dim=-1, keepdim=True)
    distances, order = (-logprobs - entropy).abs().sort(dim=-1, stable=True)
    reached = logits.gather(-1, order).softmax(dim=-1).cumsum(dim=-1) < _column(ps, logits)
    last = reached.sum(dim=1, keepdim=True).clamp(max=logits.shape[1] - 1)
    removed = distances > distances.gather(1, last)
    removed[:, 0] = False
    removed &= torch.tensor([p < 1 for p in ps], device=logits.device).unsqueeze(1)
    return logits.masked_fill(removed.scatter(1, order, removed), -torch.inf)
