"""Logit filters, row by row and each row by its own rule, as transformers' processors do them and
in their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slipstream.sampling.rule import SamplingRule

_OFF = SamplingRule()


def filtered(logits: torch.Tensor, rules: Sequence[SamplingRule]) -> torch.Tensor:
    """What is left of processed ``logits`` ``[rows, vocabulary]`` to draw from, removed tokens at
    -inf: for sampled rows temperature, top-k, top-p, min-p, typical-p, in transformers' order. A
    row's result does not depend on the other rows.

    For what needs a whole distribution; `slipstream.sampling.coupled` finds its tokens without.
    """
    if all(rule.temperature == 0 for rule in rules):
        return logits
    logits = over_temperatures(logits, [rule.temperature or 1.0 for rule in rules])
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


def over_temperatures(logits: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """Each row over its temperature. Not by a number: CUDA would multiply by its reciprocal, which
    rounds differently."""
    return logits / _column(temperatures, logits)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)


def _top_k(logits: torch.Tensor, ks: Sequence[int]) -> torch.Tensor:
    vocabulary_size = logits.shape[1]
    wanted = torch.tensor([min(k or vocabulary_size, vocabulary_size) for k in ks], device=logits.device)
    largest = logits.topk(max(min(k, vocabulary_size) for k in ks)).values
    kth = largest.gather(1, (wanted - 1).clamp(max=largest.shape[1] - 1).unsqueeze(1))
    off = torch.tensor([k == 0 for k in ks], device=logits.device).unsqueeze(1)
    return logits.masked_fill((logits < kth) & ~off, -torch.inf)


def _top_p(logits: torch.Tensor, ps: Sequence[float]) -> torch.Tensor:
    """As transformers does, but that tokens as likely as the last one kept are kept too: no order
    decides among equals."""
    ascending = _ascending(logits)
    # The subtraction is done in Python's float64 and rounded once, as transformers does it for a
    # scalar.
    removed = ascending.softmax(dim=-1).cumsum(dim=-1) <= _column([1 - p for p in ps], logits)
    last = removed.sum(dim=-1, keepdim=True).clamp(max=logits.shape[1] - 1)
    off = torch.tensor([p == 1 for p in ps], device=logits.device).unsqueeze(1)
    return logits.masked_fill((logits < ascending.gather(1, last)) & ~off, -torch.inf)


def _min_p(logits: torch.Tensor, ps: Sequence[float]) -> torch.Tensor:
    probabilities = logits.softmax(dim=-1)
    threshold = _column(ps, logits) * probabilities.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < threshold, -torch.inf)


def _typical_p(logits: torch.Tensor, ps: Sequence[float]) -> torch.Tensor:
    """Meister et al., "Locally typical sampling" (2022): the tokens whose surprise is nearest to
    the entropy."""
    logprobs = logits.log_softmax(dim=-1)
    entropy = -(logprobs * logprobs.exp()).nansum(dim=-1, keepdim=True)
    distances, order = _nearest_first((-logprobs - entropy).abs())
    reached = logits.gather(-1, order).softmax(dim=-1).cumsum(dim=-1) < _column(ps, logits)
    last = reached.sum(dim=1, keepdim=True).clamp(max=logits.shape[1] - 1)
    removed = distances > distances.gather(1, last)
    removed[:, 0] = False
    removed &= torch.tensor([p < 1 for p in ps], device=logits.device).unsqueeze(1)
    return logits.masked_fill(removed.scatter(1, order, removed), -torch.inf)


def _ascending(values: torch.Tensor) -> torch.Tensor:
    """Each row's values by size."""
    if not _is_numpys(values):
        return values.sort(dim=-1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1))


def _nearest_first(distances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's distances, which are not negative, by size, of equals the first first; and where
    they come from."""
    if not _is_numpys(distances):
        return distances.sort(dim=-1, stable=True)
    # Of numbers that are not negative the bits are by size too. With its place below them each key
    # is another, and any sort is a stable one.
    keys = distances.numpy().view(np.uint32).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(keys.shape[-1], dtype=np.uint64)
    keys.sort(axis=-1)
    order = torch.from_numpy((keys & np.uint64(0xFFFFFFFF)).astype(np.int64))
    return distances.gather(-1, order), order


def _is_numpys(values: torch.Tensor) -> bool:
    """Whether NumPy sorts them: on a CPU in a sixteenth of torch's time, and in a quarter where it
    has to be stable."""
    return values.device.type == "cpu" and values.dtype == torch.float32
