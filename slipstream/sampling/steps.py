"""A draft's choices at one position after another, each of which goes into the next forward: the way with the least to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from slipstream.sampling.choose import choose, is_plain_argmax, is_plain_draw
from slipstream.sampling.coupled import LARGEST_OPEN
from slipstream.sampling.noise import Floats, all_arrivals
from slipstream.sampling.row import Choice, Row

RowsAt = Callable[[int], list[Row]]
"""The rows of a step, by its index: all of one rule, and alike but for their sequences and positions."""

_STEPS_AHEAD = 8
"""For which noise is drawn together."""


class Steps(Protocol):
    """The steps of one run."""

    def choose(self, logits: torch.Tensor) -> list[int]:
        """Each sequence's token of the next step, from ``logits`` ``[sequences, vocabulary]``, not looked at later."""
        ...

    def choices(self) -> list[list[Choice]]:
        """The choices of each step."""
        ...


def steps_of(rows_at: RowsAt, vocabulary_size: int) -> Steps:
    """The steps whose rows these are."""
    first = rows_at(0)[0]
    if vocabulary_size <= LARGEST_OPEN:
        if is_plain_argmax(first):
            return _Likeliest(rows_at)
        if is_plain_draw(first):
            return _Drawn(rows_at)
    return _Any(rows_at)


class _Any:
    """Chosen and described step by step."""

    def __init__(self, rows_at: RowsAt) -> None:
        self._rows_at = rows_at
        self._choices: list[list[Choice]] = []

    def choose(self, logits: torch.Tensor) -> list[int]:
        self._choices.append(choose(logits, self._rows_at(len(self._choices))))
        return [choice.token for choice in self._choices[-1]]

    def choices(self) -> list[list[Choice]]:
        return self._choices


class _Likeliest:
    """The largest logits, described together at the end."""

    def __init__(self, rows_at: RowsAt) -> None:
        self._rows_at = rows_at
        self._logits: list[torch.Tensor] = []

    def choose(self, logits: torch.Tensor) -> list[int]:
        self._logits.append(logits.clone())
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        return tokens

    def choices(self) -> list[list[Choice]]:
        return _described(self._logits, self._rows_at)


class _Drawn:
    """Coupled draws from all there is, every token's noise beside its logit."""

    def __init__(self, rows_at: RowsAt) -> None:
        self._rows_at = rows_at
        self._temperature = np.float32(rows_at(0)[0].rule.temperature)
        self._noise: list[Floats] = []
        self._logits: list[torch.Tensor] = []
        self._tokens: list[list[int]] = []
        self._margins: list[Floats] = []

    def choose(self, logits: torch.Tensor) -> list[int]:
        step = len(self._tokens)
        if step == len(self._noise):
            rows = [row for ahead in range(step, step + _STEPS_AHEAD) for row in self._rows_at(ahead)]
            arrivals = all_arrivals([row.rule.seed for row in rows], [row.position for row in rows], logits.shape[1])
            self._noise.extend(np.split(-np.log(arrivals), _STEPS_AHEAD))
        self._logits.append(logits.float().clone())
        scores = self._logits[-1].cpu().numpy() / self._temperature + self._noise[step]
        every, best = np.arange(len(scores)), scores.argmax(axis=1)
        top = scores[every, best]
        scores[every, best] = -np.inf
        self._margins.append(top - scores.max(axis=1))
        self._tokens.append(best.tolist())
        return self._tokens[-1]

    def choices(self) -> list[list[Choice]]:
        values = torch.stack(self._logits).cpu() / torch.tensor(self._temperature)
        logprobs = values.gather(2, torch.tensor(self._tokens).unsqueeze(2)).squeeze(2) - values.logsumexp(dim=2)
        if not logprobs.isfinite().all():
            return _described(self._logits, self._rows_at)  # which says what is wrong with which row
        steps = zip(self._tokens, np.stack(self._margins).tolist(), logprobs.tolist(), strict=True)
        return [[Choice(*choice) for choice in zip(*step, strict=True)] for step in steps]


def _described(logits: list[torch.Tensor], rows_at: RowsAt) -> list[list[Choice]]:
    """All steps chosen together."""
    rows = [rows_at(step) for step in range(len(logits))]
    choices = iter(choose(torch.cat(logits), [row for step in rows for row in step]))
    return [[next(choices) for _ in step] for step in rows]
