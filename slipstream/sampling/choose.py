"""Choosing: filters, then each row by its own kind of draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.sampling import ratio
from slipstream.sampling.coupled import choose_coupled, choose_likeliest
from slipstream.sampling.filters import apply_filters
from slipstream.sampling.row import Choice, Row


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> list[Choice]:
    """The token each row chooses from ``logits`` ``[rows, vocabulary]`` of any float dtype. Rows do not depend on each other.

    Temperature 0: the likeliest. Coupled: the likeliest with noise. Ratio: the test where a token is proposed, a draw with
    its distribution where the draft draws, and the target's coupled draw after the proposal's end.
    """
    filtered = apply_filters(logits, rows)
    if all(row.rule.temperature == 0 for row in rows):
        return choose_likeliest(filtered)
    choices: dict[int, Choice] = {}
    greedy = [index for index, row in enumerate(rows) if row.rule.temperature == 0]
    tested = [i for i, row in enumerate(rows) if row.rule.draws_ratios and (row.proposed is not None or row.drafting)]
    for index in tested:
        choices[index] = _choose_by_ratio(filtered[index], rows[index])
    if greedy:
        choices.update(zip(greedy, choose_likeliest(filtered[greedy]), strict=True))
    coupled = [index for index in range(len(rows)) if index not in choices]
    if coupled:
        seeds = [rows[index].rule.seed for index in coupled]
        positions = [rows[index].position for index in coupled]
        some = filtered if len(coupled) == len(rows) else filtered[coupled]
        choices.update(zip(coupled, choose_coupled(some, seeds, positions), strict=True))
    return [choices[index] for index in range(len(rows))]


def _choose_by_ratio(logits: torch.Tensor, row: Row) -> Choice:
    if row.proposed is None:
        return ratio.draw(logits, row.rule, row.position)
    return ratio.decide(logits, row.rule, row.position, row.proposed)
