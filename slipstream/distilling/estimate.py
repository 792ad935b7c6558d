"""Estimates a draft's acceptance from the records: teacher-forced, so no service runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from slipstream.distilling.examples import collate
from slipstream.distilling.objective import draft_logprobs, expected_acceptance, target_probabilities
from slipstream.distilling.records import SequenceRecord

POSITIONS = 8
"""Positions of a hint whose acceptance is reported."""


class Estimate(NamedTuple):
    """The acceptance of a draft's hints, if a hint began at each of the target's tokens.

    ``by_position[k]`` is the share of hints whose first k + 1 tokens are all accepted, among hints
    that long. It comes from the target's records: the draft reads the target's own text.
    """

    token: float
    """Share of the target's tokens that the draft would have guessed after the tokens before."""
    by_position: list[float]


class Estimates(NamedTuple):
    """Estimates at temperature 0 and at `sampled_temperature`."""

    greedy: Estimate
    sampled: Estimate
    error_bound: float
    """Most by which ``sampled.token`` can be off, because only the likeliest tokens are known."""
    row_count: int


def sampled_temperature(temperature: float) -> float:
    """Return the temperature of `Estimates.sampled`: that of the traffic, or 1 if it is greedy."""
    return temperature or 1.0


def survival(accepted: Iterable[np.ndarray[Any, Any]]) -> list[float]:
    """Return `Estimate.by_position` of runs of positions that follow one another, each with the
    odds ``[length]`` that its token is accepted."""
    sums, counts = np.zeros(POSITIONS), np.zeros(POSITIONS)
    for run in accepted:
        alive = np.ones(len(run))
        for index in range(min(POSITIONS, len(run))):
            alive = alive[: len(run) - index] * run[index:]
            sums[index] += alive.sum()
            counts[index] += len(alive)
    return [float(total / count) for total, count in zip(sums, counts, strict=True) if count]


@torch.no_grad()
def estimated(
    logits_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    batches: Iterable[Sequence[SequenceRecord]],
    *,
    temperature: float,
    vocabulary_size: int,
    device: str,
) -> Estimates:
    """Return the acceptance of a draft on sequences that it was not trained on."""
    greedy: list[np.ndarray[Any, Any]] = []
    sampled: list[np.ndarray[Any, Any]] = []
    off, at = 0.0, sampled_temperature(temperature)
    for records in batches:
        batch = collate(records, device)
        logits = logits_of(batch.ids, batch.places)
        p = target_probabilities(batch.top_logprobs, at, vocabulary_size)
        q = draft_logprobs(logits, batch.top_ids, at).exp()
        off += float(torch.minimum(p[:, -1], q[:, -1]).sum())
        ends = _ends_of_runs(records)
        greedy += np.split((logits.argmax(-1) == batch.top_ids[:, 0]).double().cpu().numpy(), ends)
        sampled += np.split(expected_acceptance(p, q).double().cpu().numpy(), ends)
    count = sum(map(len, greedy))
    return Estimates(_estimate(greedy), _estimate(sampled), off / count, count)


def _estimate(runs: Sequence[np.ndarray[Any, Any]]) -> Estimate:
    return Estimate(float(np.concatenate(runs).mean()), survival(runs))


def _ends_of_runs(records: Sequence[SequenceRecord]) -> np.ndarray[Any, Any]:
    """Return the rows of a batch that do not follow the row before them."""
    at = np.concatenate([record.positions.astype(np.int64) + index * 2**32 for index, record in enumerate(records)])
    return 1 + np.flatnonzero(np.diff(at) != 1)
