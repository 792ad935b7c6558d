"""Changes that rules make to logits before sampling. They look at tokens, and apply to greedy rows
too.

In transformers' order: logit bias, penalties, banned tokens, end tokens held back, allowed tokens,
structure. Repetition is as in transformers, over the whole context; frequency and presence as in
OpenAI's API, over what was generated in this turn.

All of it is compiled code, and threads share the rows. A step's rows come after one another in one
context: its tokens are looked at once, and each row only adds those that have come since the row
before. Few of a row's blocks are touched, and only of those the largest logit is looked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from slipstream.sampling.blocks import LOOKED_AT, BlockedLogits
from slipstream.sampling.kernel import Floats32, Ints, process_rows, restrict_row
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.sharing import share_rows

_NOTHING: Ints = np.empty(0, dtype=np.int64)


class _Group(NamedTuple):
    """Rows of one rule and context: from ``start`` to before ``end`` of those in order; and what
    compiled code is told."""

    start: int
    end: int
    told: tuple[Any, ...]


def processed(logits: BlockedLogits, rows: Sequence[Row]) -> BlockedLogits:
    """The logits of each row as its rule leaves them, float32; ``logits`` stay as they are. A row
    depends on no other."""
    size = logits.stored.shape[1]
    for row in rows:
        if row.allowed is not None and len(row.allowed) != size:
            raise ValueError(f"a structure's mask is of {len(row.allowed)} tokens, and there are {size} logits")
    order = sorted(range(len(rows)), key=lambda at: (*_key(rows[at]), rows[at].position))
    groups = _groups([rows[at] for at in order])
    sources, targets = logits.indices[order], np.array(order, dtype=np.int64)
    positions = np.array([rows[at].position for at in order], dtype=np.int64)
    found: Floats32 = np.empty((len(rows), size), dtype=np.float32)
    maxima: Floats32 = np.empty((len(rows), logits.maxima.shape[1]), dtype=np.float32)

    def process_some(start: int, end: int) -> None:
        for group in groups:
            own = slice(max(start, group.start), min(end, group.end))
            if own.start < own.stop:
                process_rows(
                    logits.stored,
                    logits.maxima,
                    sources[own],
                    found,
                    maxima,
                    targets[own],
                    positions[own],
                    *group.told,
                )
        for at in order[start:end]:
            allowed = rows[at].allowed
            if allowed is not None:
                restrict_row(found, maxima, at, allowed)

    share_rows(process_some, len(rows), max(1, size // LOOKED_AT))
    return BlockedLogits(found, maxima)


def _key(row: Row) -> tuple[int, int]:
    """Equal for rows that have the same work done to them."""
    return id(row.rule), id(row.context)


def _groups(rows: Sequence[Row]) -> list[_Group]:
    """Group rows that are sorted by their keys."""
    contexts: dict[int, Ints] = {}
    groups: list[_Group] = []
    for _, members in groupby(enumerate(rows), lambda each: _key(each[1])):
        (start, row), *others = members
        rule, context = row.rule, _NOTHING
        if rule.penalises:
            if id(row.context) not in contexts:
                contexts[id(row.context)] = np.array(row.context, dtype=np.int64)
            context = contexts[id(row.context)]
        groups.append(_Group(start, start + 1 + len(others), _told(rule, context)))
    return groups


def _told(rule: SamplingRule, context: Ints) -> tuple[Any, ...]:
    listed = rule.listed
    return (
        context,
        listed.biased,
        listed.biases,
        np.float32(rule.repetition_penalty),
        min(max(0, rule.first_generated_position), len(context)),
        np.float32(rule.frequency_penalty),
        np.float32(rule.presence_penalty),
        listed.banned,
        listed.ends,
        rule.first_end_position,
        listed.allowed,
    )
