"""Logit filters, row by row and each row by its own rule, as transformers' processors do them and
in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from slipstream.sampling.kernel import Floats32, Ints
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.softmax import exp, log_softmax, softmax
from slipstream.sampling_fields import SAMPLING_FIELDS


def filtered(logits: Floats32, rules: Sequence[SamplingRule]) -> Floats32:
    """Return what is left of processed ``logits`` ``[rows, vocabulary]`` to draw from, removed
    tokens at -inf: for sampled rows temperature, top-k, top-p, min-p and typical-p, in
    transformers' order.

    A row's result does not depend on the other rows. `slipstream.sampling.coupled` finds its tokens
    without a whole distribution and does not need this.
    """
    if all(rule.temperature == 0 for rule in rules):
        return logits
    left = logits.copy()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for row, rule in zip(left, rules, strict=True):
            if rule.temperature:
                _filter(row, rule)
    return left


def needs_distribution(rule: SamplingRule) -> bool:
    """Return whether a rule has a filter on that the search of `slipstream.sampling.coupled` does
    not do."""
    return any(getattr(rule, name) != SAMPLING_FIELDS[name].off for name in _UNSEARCHED)


def _filter(row: Floats32, rule: SamplingRule) -> None:
    row /= np.float32(rule.temperature)
    for name, keep in _FILTERS.items():
        if (value := getattr(rule, name)) != SAMPLING_FIELDS[name].off:
            keep(row, value)


def _keep_top_n_sigma(row: Floats32, n: float) -> None:
    """Keep logits within ``n`` standard deviations of the largest one: Tang et al., "Top-nσ: Not
    All Logits Are You Need" (2024). Tokens that are already removed do not count."""
    left = row[np.isfinite(row)].astype(np.float64)
    row[row < left.max() - n * left.std()] = -np.inf


def _keep_top_k(row: Floats32, top_k: int) -> None:
    if top_k < len(row):
        row[row < np.partition(row, -top_k)[-top_k]] = -np.inf


def _keep_top_p(row: Floats32, top_p: float) -> None:
    """Keep what transformers keeps, and tokens as likely as the last one that is kept: no order
    decides among equals."""
    ascending = np.sort(row)
    # The subtraction is done in Python's float64 and rounded once, as transformers does it for a
    # scalar.
    removed = _cumulated(softmax(ascending)) <= np.float32(1 - top_p)
    row[row < ascending[min(int(removed.sum()), len(row) - 1)]] = -np.inf


def _keep_min_p(row: Floats32, min_p: float) -> None:
    probabilities = softmax(row)
    row[probabilities < np.float32(min_p) * probabilities.max()] = -np.inf


def _keep_typical(row: Floats32, typical_p: float) -> None:
    """Keep the tokens whose surprise is nearest to the entropy: Meister et al., "Locally typical
    sampling" (2022)."""
    logprobs = log_softmax(row)
    entropy = np.float32(-np.nansum(logprobs * exp(logprobs), dtype=np.float64))
    distances, order = nearest_first(np.abs(-logprobs - entropy))
    reached = _cumulated(softmax(row[order])) < np.float32(typical_p)
    removed = distances > distances[min(int(reached.sum()), len(row) - 1)]
    removed[0] = False
    row[order[removed]] = -np.inf


_FILTERS: Final[Mapping[str, Callable[[Floats32, Any], None]]] = {
    "top_n_sigma": _keep_top_n_sigma,
    "top_k": _keep_top_k,
    "top_p": _keep_top_p,
    "min_p": _keep_min_p,
    "typical_p": _keep_typical,
}
"""The filter of each field that is one, in the order in which they are applied."""

_UNSEARCHED: Final = tuple(name for name in _FILTERS if name not in ("top_k", "top_p", "min_p"))


def _cumulated(probabilities: Floats32) -> Floats32:
    return np.cumsum(probabilities, dtype=np.float64).astype(np.float32)


def nearest_first(distances: Floats32) -> tuple[Floats32, Ints]:
    """Return a row's distances by size, of equals the first first, and their places in the row. No
    distance is negative."""
    # Bits of numbers that are not negative are ordered as the numbers are. With its place in the
    # lower half each key is unique, so that any sort is a stable one: faster than NumPy's stable
    # sort.
    keys = distances.view(np.uint32).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    order = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return distances[order], order
