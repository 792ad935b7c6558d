"""Compiled processing against torch's own operations, row by row: equal to the bit, and so are the
maxima of its blocks."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.sampling.choose import warm
from slipstream.sampling.kernel import process_rows, restrict_row
from slipstream.sampling.processing import processed
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.sharing import choose_with
from tests.tensors import blocked, choose, tensor_of

NUMBERS = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-42, -3e38]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    choose_with(request.param)
    yield request.param
    choose_with(1)


def by_torch(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """Row by row, in transformers' order."""
    changed = logits.float().clone()
    for scores, row in zip(changed, rows, strict=True):
        rule = row.rule
        for token, bias in rule.logit_bias:
            scores[token] += bias
        context = torch.tensor(row.context, dtype=torch.int64)[: row.position]
        repeated = context[context < len(scores)]
        own = scores[repeated]
        scores[repeated] = torch.where(own < 0, own * rule.repetition_penalty, own / rule.repetition_penalty)
        generated = context[max(0, rule.first_generated_position) :]
        tokens, counts = torch.unique(generated[generated < len(scores)], return_counts=True)
        scores[tokens] -= rule.frequency_penalty * counts.float()
        scores[tokens] -= rule.presence_penalty
        scores[list(rule.banned_token_ids)] = -torch.inf
        if row.position < rule.first_end_position:
            scores[list(rule.end_token_ids)] = -torch.inf
        if rule.allowed_token_ids:
            kept = scores[list(rule.allowed_token_ids)]
            scores[:] = -torch.inf
            scores[list(rule.allowed_token_ids)] = kept
        if row.allowed is not None:
            scores.masked_fill_(torch.from_numpy(~row.allowed), -torch.inf)
    return changed


def a_rule(draw: random.Random, size: int) -> SamplingRule:
    """Any combination, switched off and at their limits too."""

    def some() -> tuple[int, ...]:
        return tuple(draw.sample(range(size), draw.choice([0, 0, 1, size // 2])))

    return SamplingRule(
        logit_bias=tuple((token, draw.choice([0.5, -100.0])) for token in some()),
        repetition_penalty=draw.choice([1.0, 1.1, 0.37, 0.01, 100.0]),
        presence_penalty=draw.choice([0.0, 0.3, -2.0]),
        frequency_penalty=draw.choice([0.0, 0.1, -1.7]),
        first_generated_position=draw.choice([-3, 0, 2, 40, 2**31 - 1]),
        banned_token_ids=some(),
        end_token_ids=some(),
        first_end_position=draw.choice([0, 3, 30]),
        allowed_token_ids=some(),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(40))
def test_logits_are_changed_as_torch_changes_them(seed: int, dtype: torch.dtype) -> None:
    draw = random.Random(seed)
    size, count = draw.choice([5, 64, 1000]), draw.choice([1, 2, 9])
    spread = draw.choice([1, 1e4])
    logits = (torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)
    for number in NUMBERS:
        logits[draw.randrange(count), draw.randrange(size)] = number
    contexts = [[draw.randrange(size + 5) for _ in range(draw.choice([0, 1, 3, 60, 500]))] for _ in range(2)]
    rules = [a_rule(draw, size), a_rule(draw, size)]
    rows = []
    for _ in range(count):
        context = draw.choice(contexts)
        rows.append(Row(draw.choice(rules), draw.randrange(len(context) + 3), context))
        if draw.random() < 0.3:
            rows[-1].allowed = np.array([draw.random() < 0.5 for _ in range(size)])
    given = logits.clone()
    found, expected = processed(blocked(logits), rows), by_torch(logits, rows)
    # Which of several NaNs a number is says nothing.
    assert torch.equal(tensor_of(found).nan_to_num(7.5, None, None), expected.nan_to_num(7.5, None, None))
    assert torch.equal(tensor_of(found).isnan(), expected.isnan())
    is_number = ~expected.isnan()
    assert torch.equal(tensor_of(found).view(torch.int32)[is_number], expected.view(torch.int32)[is_number])
    made_new = blocked(expected)
    assert np.array_equal(found.maxima, made_new.maxima, equal_nan=True)
    assert np.array_equal(found.largest(), made_new.largest(), equal_nan=True)
    assert torch.equal(logits.view(torch.uint8), given.view(torch.uint8)), "the logits given must stay as they were"


def test_rows_that_threads_share_are_the_same(threads: int) -> None:
    """More than a piece: one rule's rows are then worked at from different places of their
    context."""
    size, draw = 100_003, random.Random(1)
    logits = torch.randn(12, size, generator=torch.Generator().manual_seed(2)).bfloat16()
    contexts = [[draw.randrange(size) for _ in range(60)] for _ in range(2)]
    rules = [
        SamplingRule(frequency_penalty=0.3, repetition_penalty=1.2, first_generated_position=20),
        SamplingRule(banned_token_ids=(7, size - 1), logit_bias=((9, 4.0),)),
    ]
    rows = [Row(rules[at % 3 == 2], 60 - at, contexts[at % 2]) for at in range(12)]
    rows[4].allowed = np.array([draw.random() < 0.5 for _ in range(size)])
    found = processed(blocked(logits), rows)
    assert torch.equal(tensor_of(found), by_torch(logits, rows))
    assert np.array_equal(found.maxima, blocked(tensor_of(found)).maxima)


def test_some_of_the_rows_are_read_where_they_lie() -> None:
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(3))
    rows = [Row(SamplingRule(banned_token_ids=(token,)), 1) for token in (150, 3)]
    found = processed(blocked(logits).subset([3, 1]), rows)
    assert torch.equal(tensor_of(found), by_torch(logits[[3, 1]], rows))


def test_tokens_beyond_the_vocabulary_have_no_logit() -> None:
    """A draft may have fewer than its target, whose rules it is told."""
    rule = SamplingRule(
        logit_bias=((1, 1.0), (70, 5.0)),
        banned_token_ids=(2, 2**40),
        end_token_ids=(0, 70),
        first_end_position=9,
        allowed_token_ids=(0, 1, 2, 70),
    )
    found = processed(blocked(torch.zeros(1, 70)), [Row(rule, 4, [1])])
    assert tensor_of(found)[0, :3].tolist() == [-torch.inf, 1.0, -torch.inf]
    assert tensor_of(found).isneginf().sum() == 69


def test_a_mask_of_another_size_is_an_error() -> None:
    for size in (69, 71):
        with pytest.raises(ValueError, match=f"mask is of {size} tokens, and there are 70 logits"):
            processed(blocked(torch.zeros(1, 70)), [Row(SamplingRule(), 4, allowed=np.ones(size, bool))])


def test_a_turn_that_begins_before_the_text_begins_with_it() -> None:
    rule = SamplingRule(frequency_penalty=1.0, first_generated_position=-3)
    found = processed(blocked(torch.ones(1, 4)), [Row(rule, 4, [0, 1, 1, 3])])
    assert tensor_of(found).tolist() == [[0, -1, 1, 0]]


def test_nothing_is_compiled_for_a_rule_once_choosing_is_warm() -> None:
    warm(np.float32, np.int16)
    functions: tuple[Any, ...] = (process_rows, restrict_row)
    known = [list(each.signatures) for each in functions]
    rule, context = SamplingRule(repetition_penalty=1.2, presence_penalty=0.5, logit_bias=((3, 1.0),)), [5, 6, 7, 8]
    for dtype in (torch.bfloat16, torch.float32):
        for row_count in (1, 3):  # rows of one context are one call
            rows = [Row(rule, 2 + row, context) for row in range(row_count)]
            rows[0].allowed = np.ones(100, bool)
            choose(torch.zeros(row_count, 100, dtype=dtype), rows)
    assert [list(each.signatures) for each in functions] == known
