"""Compiled penalties against torch's own operations row by row, which are what other devices have: equal to the bit."""

import random

import pytest
import torch

from slipstream.sampling import penalties
from slipstream.sampling.choose import warm
from slipstream.sampling.kernel import penalise_rows
from slipstream.sampling.penalties import penalise
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule

NUMBERS = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-42, -3e38]


def by_torch(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """Row by row."""
    changed = logits.clone()
    for index, row in enumerate(rows):
        context = torch.tensor(row.context, dtype=torch.int64)
        penalties._penalise_one(changed[index], row.rule, context[: row.position])
    return changed


def a_rule(draw: random.Random) -> SamplingRule:
    """Any combination, switched off and at their limits too."""
    return SamplingRule(
        repetition_penalty=draw.choice([1.0, 1.1, 0.37, 0.01, 100.0]),
        presence_penalty=draw.choice([0.0, 0.3, -2.0]),
        frequency_penalty=draw.choice([0.0, 0.1, -1.7]),
        first_generated_position=draw.choice([0, 2, 40, 2**31 - 1]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_compiled_code_changes_logits_as_torch_does(seed: int) -> None:
    draw = random.Random(seed)
    size, count = draw.choice([5, 64, 1000]), draw.choice([1, 2, 9])
    logits = torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) * draw.choice([1, 1e4])
    for number in NUMBERS:
        logits[draw.randrange(count), draw.randrange(size)] = number
    contexts = [[draw.randrange(size + 5) for _ in range(draw.choice([0, 1, 3, 60, 500]))] for _ in range(2)]
    rules = [a_rule(draw), a_rule(draw)]
    rows = []
    for _ in range(count):
        context = draw.choice(contexts)
        rows.append(Row(draw.choice(rules), draw.randrange(len(context) + 3), context))
    changed = logits.clone()
    penalise(changed, range(count), rows)
    assert torch.equal(changed.view(torch.int32), by_torch(logits, rows).view(torch.int32))


def test_rows_that_are_not_meant_are_left_alone() -> None:
    logits = torch.ones(3, 4)
    penalise(logits, [1], [Row(SamplingRule(presence_penalty=1.0), 2, [0, 3])])
    assert logits.tolist() == [[1, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]]


def test_a_turn_that_begins_before_the_text_begins_with_it() -> None:
    logits = torch.ones(1, 4)
    rule = SamplingRule(frequency_penalty=1.0, first_generated_position=-3)
    penalise(logits, [0], [Row(rule, 4, [0, 1, 1, 3])])
    assert logits.tolist() == [[0, -1, 1, 0]]


def test_nothing_is_compiled_for_a_penalty_once_choosing_is_warm() -> None:
    warm()
    known = list(penalise_rows.signatures)  # type: ignore[attr-defined]
    rule, context = SamplingRule(repetition_penalty=1.2, presence_penalty=0.5), [5, 6, 7, 8]
    for row_count in (1, 3):  # rows of one context are one call
        penalise(
            torch.zeros(row_count, 100), range(row_count), [Row(rule, 2 + row, context) for row in range(row_count)]
        )
    assert list(penalise_rows.signatures) == known  # type: ignore[attr-defined]
