"""The tokens that heads guess from their logits, and the odds that the target chooses the same.

At temperature 0 that is the likeliest token. Above it the target's own noise is added, as a draft
adds it (`slipstream.sampling.coupled`): then the target's choice is mostly the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from slipstream.engine.heads.matrix import softmax
from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.choose import choose
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.row import VOID, Choice, Row
from slipstream.sampling.rule import SamplingRule

_CANDIDATE_COUNT = 4
"""Tokens whose perturbed logits the odds are made of. More: tokens that the target hardly ever
chooses."""


class Picked(NamedTuple):
    """A guessed token, and the odds that the target chooses it if all before it are right."""

    token: int
    odds: float


class Picking:
    """Picks tokens of the target from logits over a part of its vocabulary."""

    def __init__(self, target_ids: np.ndarray, vocabulary_size: int) -> None:
        """``target_ids``: the target's id of each logit, int64."""
        self._ids, self._size = target_ids, vocabulary_size

    def pick(
        self,
        logits: Floats32,
        rules: Sequence[SamplingRule],
        contexts: Sequence[Sequence[int]],
        positions: Sequence[int],
    ) -> list[Picked | None]:
        """Return a token for each row of ``logits`` ``[rows, part of the vocabulary]``, which is
        chosen by a rule at a position, after the first tokens of a context. None where no token can
        be chosen."""
        rows = [
            Row(replace(rule, structure=None) if rule.structure is not None else rule, position, context)
            for rule, context, position in zip(rules, contexts, positions, strict=True)
        ]
        plain = [index for index, row in enumerate(rows) if not row.rule.temperature and not row.is_processed]
        picked: list[Picked | None] = [None] * len(rows)
        if plain:
            for index, each in zip(plain, self._likeliest(logits[plain]), strict=True):
                picked[index] = each
        if others := [index for index in range(len(rows)) if index not in plain]:
            for index, each in zip(others, self._chosen(logits[others], [rows[at] for at in others]), strict=True):
                picked[index] = each
        return picked

    def _likeliest(self, logits: Floats32) -> list[Picked | None]:
        best = logits.argmax(axis=1)
        odds = softmax(logits)[np.arange(len(best)), best]
        return [Picked(int(self._ids[index]), float(each)) for index, each in zip(best, odds, strict=True)]

    def _chosen(self, logits: Floats32, rows: list[Row]) -> list[Picked | None]:
        whole = np.full((len(rows), self._size), -np.inf, dtype=np.float32)
        whole[:, self._ids] = logits
        for row in rows:
            row.drafting, row.candidate_count = True, _CANDIDATE_COUNT
        return [_picked(choice) for choice in choose(BlockedLogits(whole), rows)]


def _picked(choice: Choice) -> Picked | None:
    if choice.token == VOID or not choice.candidates:
        return None
    scores = np.array([score for _, score in choice.candidates])
    return Picked(choice.token, float(softmax(scores)[0]))
