"""Penalties for tokens that have occurred: repetition as in transformers, over the whole context; frequency and presence as in
OpenAI's API, over what was generated in this turn.

A step's rows come after one another in one context: its tokens are looked at once, and each row only adds those that have come
since the row before. On the CPU that is compiled code, in place; on another device torch's own operations, row by row. Both
round alike: a product or quotient in float32 for a repetition, then the product of frequency and count taken off, and then the
presence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from slipstream.sampling.kernel import Floats32, Ints, penalise_rows
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule

if TYPE_CHECKING:
    import torch


def penalise(logits: torch.Tensor, indices: Sequence[int], rows: Sequence[Row]) -> None:
    """In place, of float32 ``logits`` ``[*, vocabulary]`` those at ``indices``, each by the rule and the context of its row.
    Context tokens beyond the vocabulary have no logit."""
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    shared: dict[tuple[int, int], Row] = {}
    for index, row in zip(indices, rows, strict=True):
        key = id(row.context), id(row.rule)
        groups.setdefault(key, []).append((row.position, index))
        shared[key] = row
    contexts: dict[int, Ints] = {}
    for key, members in groups.items():
        row = shared[key]
        if key[0] not in contexts:
            contexts[key[0]] = np.array(row.context, dtype=np.int64)
        context, rule = contexts[key[0]], row.rule
        if logits.device.type == "cpu":
            penalise_together(logits.numpy(), members, context, rule)
        else:
            import torch

            tokens = torch.from_numpy(context).to(logits.device)
            for position, index in members:
                _penalise_one(logits[index], rule, tokens[:position])


def penalise_together(logits: Floats32, members: list[tuple[int, int]], context: Ints, rule: SamplingRule) -> None:
    """In place, rows of ``logits`` with one rule and context: their positions and indices."""
    # Both in one piece, be there one row or many: compiled code is of a layout, and is to be there before it is asked for.
    positions, indices = np.array(sorted(members), dtype=np.int64).T.copy()
    off, repetition = np.float32(0.0), np.float32(rule.repetition_penalty)
    frequency, presence = np.float32(rule.frequency_penalty), np.float32(rule.presence_penalty)
    if repetition != 1:
        penalise_rows(logits, indices, context, positions, 0, repetition, off, off)
    if frequency or presence:
        start = min(max(0, rule.first_generated_position), len(context))
        penalise_rows(logits, indices, context, positions, start, np.float32(1.0), frequency, presence)


def _penalise_one(logits: torch.Tensor, rule: SamplingRule, context: torch.Tensor) -> None:
    """In place, for one row of logits ``[vocabulary]`` and what comes before it."""
    import torch

    if rule.repetition_penalty != 1:
        tokens = context[context < len(logits)]  # a token that occurs twice is written the same twice
        scores = logits[tokens]
        logits[tokens] = torch.where(scores < 0, scores * rule.repetition_penalty, scores / rule.repetition_penalty)
    if rule.presence_penalty or rule.frequency_penalty:
        generated = context[rule.first_generated_position :]
        tokens, counts = torch.unique(generated[generated < len(logits)], return_counts=True)
        logits[tokens] -= rule.frequency_penalty * counts.float()
        logits[tokens] -= rule.presence_penalty
