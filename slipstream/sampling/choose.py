"""Choosing: each row by its own kind of draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.compilation import Unit, compile_shared, unit_name
from slipstream.sampling import kernel, ratio
from slipstream.sampling.blocks import BlockedLogits, Logits, in_blocks
from slipstream.sampling.coupled import choose_coupled, choose_likeliest
from slipstream.sampling.faults import fault_of
from slipstream.sampling.filters import filtered, needs_distribution
from slipstream.sampling.kernel import BLOCK, MACHINE, Domain, coin, compiled_folder
from slipstream.sampling.processing import processed
from slipstream.sampling.row import VOID, Choice, Row
from slipstream.sampling.rule import NUMBERS, SamplingRule
from slipstream.sampling.softmax import softmax

_LOCK = "choosing"


class _Kind(Enum):
    __hash__ = object.__hash__  # Enum's own is Python, and every step of a draft asks for it

    GREEDY = 0
    COUPLED = 1
    """A coupled draw. It is also the token after a proposal's end under the ratio test: a plain
    draw from the target."""
    FILTERED = 2
    """A coupled draw from what filters leave that need a row's whole distribution."""
    DRAWN = 3
    """The draft's own draw under the ratio test."""
    TESTED = 4
    VOID = 5


def choose(logits: Logits | BlockedLogits, rows: Sequence[Row]) -> list[Choice]:
    """Return the token that each row chooses from ``logits`` ``[rows, vocabulary]``, or its fault.
    A row depends on no other. Maxima of blocks that are known are not searched again."""
    plain = _plain_kind(rows) if rows else None
    changed = [] if plain is not None else [index for index, row in enumerate(rows) if row.is_processed]
    blocked = in_blocks(logits)
    if not changed:
        return _choose_as_they_are(blocked, rows, plain)
    own = [rows[index] for index in changed]
    left = processed(blocked if len(own) == len(rows) else blocked.subset(changed), own)
    if len(own) == len(rows):
        return _choose_as_they_are(left, rows)
    choices = dict(zip(changed, _choose_as_they_are(left, own), strict=True))
    others = [index for index in range(len(rows)) if index not in choices]
    unchanged = choose(blocked.subset(others), [rows[index] for index in others])
    choices.update(zip(others, unchanged, strict=True))
    return [choices[index] for index in range(len(rows))]


def _choose_as_they_are(blocked: BlockedLogits, rows: Sequence[Row], plain: _Kind | None = None) -> list[Choice]:
    """Choose from logits that their rules have already changed. ``plain`` is the result of
    `_plain_kind`."""
    largest = blocked.largest()
    if plain is not None and math.isfinite(sum(largest)):
        return _choose(plain, blocked, rows)
    choices: dict[int, Choice] = {}
    by_kind: dict[_Kind, list[int]] = {}
    for index, (row, value) in enumerate(zip(rows, largest, strict=True)):
        fault = None if row.is_void else fault_of(value, row.position)
        if fault is None:
            by_kind.setdefault(_kind(row), []).append(index)
        else:
            choices[index] = Choice(VOID, float("inf"), fault=fault)
    if len(by_kind) == 1 and not choices:
        return _choose(next(iter(by_kind)), blocked, rows)
    for kind, indices in by_kind.items():
        chosen = _choose(kind, blocked.subset(indices), [rows[index] for index in indices])
        choices.update(zip(indices, chosen, strict=True))
    return [choices[index] for index in range(len(rows))]


def choose_apart(logits: BlockedLogits, rows: Sequence[Row]) -> list[Choice]:
    """`choose`; where it fails, each row by itself, so that only those fail that make it. Raises if
    all do."""
    try:
        return choose(logits, rows)
    except Exception:
        choices = [_choose_alone(logits.subset([index]), row) for index, row in enumerate(rows)]
        if all(choice.fault is not None for choice in choices):
            raise
        return choices


def _choose_alone(logits: BlockedLogits, row: Row) -> Choice:
    try:
        return choose(logits, [row])[0]
    except Exception as error:
        return Choice(VOID, math.inf, fault=error)


def warm(*dtypes: type[np.number[Any]]) -> None:
    """Compile what choosing from logits of these dtypes needs: float32, or int16 for the bits of
    bfloat16. Takes seconds on a machine's first start, and next to nothing later."""
    compile_shared([choosing_unit(dtype) for dtype in dtypes or (np.float32,)], compiled_folder())


def choosing_unit(dtype: type[np.number[Any]] = np.float32) -> Unit:
    """Return the work of `warm` for one dtype. All have one lock: they compile the same functions,
    for other types of arguments."""
    name = unit_name(f"choosing-{dtype.__name__}", [Path(kernel.__file__)], *MACHINE, repr(NUMBERS))
    return Unit(name, partial(_warm, dtype), _LOCK)


def _warm(dtype: type[np.number[Any]]) -> None:
    rows = [Row(SamplingRule(temperature=temperature), 1) for temperature in (0.0, 1.0)]
    changed = [Row(SamplingRule(repetition_penalty=2.0), 1, [0], allowed=np.ones(BLOCK, dtype=np.bool_))]
    logits = np.zeros((2, BLOCK), dtype=dtype)
    choose(logits, rows)
    choose(logits[:1], changed)
    coin(0, 0, Domain.ACCEPTANCE)
    softmax(logits[0].astype(np.float32))


def _plain_kind(rows: Sequence[Row]) -> _Kind | None:
    """The kind of all rows, if they have one and none needs more than its logits: mostly they share
    their rule, which is then looked at once."""
    rule = rows[0].rule
    if not needs_logits_only(rule, rows[0].position):
        return None
    for row in rows:
        if row.rule is not rule or row.position < rule.first_end_position or row.allowed is not None:
            return None
    return _Kind.COUPLED if rule.temperature else _Kind.GREEDY


def needs_logits_only(rule: SamplingRule, position: int) -> bool:
    """Return True if a choice at ``position``, and each that follows, is the likeliest token or a
    coupled draw of the plain logits, and needs nothing else."""
    if position < rule.first_end_position:
        return False
    return not (rule.changes_logits or rule.structure is not None or needs_distribution(rule) or rule.draws_ratios)


def _kind(row: Row) -> _Kind:
    if row.is_void:
        return _Kind.VOID
    if row.rule.temperature == 0:
        return _Kind.GREEDY
    if row.rule.draws_ratios and row.drafting:
        return _Kind.DRAWN
    if row.rule.draws_ratios and row.proposed is not None:
        return _Kind.TESTED
    return _Kind.FILTERED if needs_distribution(row.rule) else _Kind.COUPLED


def _choose(kind: _Kind, logits: BlockedLogits, rows: Sequence[Row]) -> list[Choice]:
    if kind is _Kind.VOID:
        return [Choice(VOID, float("inf")) for _ in rows]
    candidate_count = max((row.candidate_count for row in rows if row.drafting), default=None)
    if kind is _Kind.GREEDY:
        return choose_likeliest(logits, candidate_count)
    rules, positions = [row.rule for row in rows], [row.position for row in rows]
    if kind is _Kind.COUPLED:
        return choose_coupled(logits, rules, positions, candidate_count)
    left = filtered(logits.floats(), rules)
    if kind is _Kind.FILTERED:
        plain = [SamplingRule(temperature=1.0, seed=rule.seed) for rule in rules]
        return choose_coupled(BlockedLogits(left), plain, positions, candidate_count)
    if kind is _Kind.DRAWN:
        return ratio.draw(left, rules, positions)
    return ratio.decide(left, rules, positions, [row.proposed for row in rows if row.proposed is not None])
