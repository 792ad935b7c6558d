"""transformers' own processors are the oracle, in transformers' own order."""

import random

import numpy as np
import pytest
import torch

from slipstream.sampling.filters import apply_filters
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from tests.oracle import processed

VOCABULARY = 300
CONTEXT = [random.Random(7).randrange(40) for _ in range(64)]

RULES = [
    SamplingRule(temperature=0.8),
    SamplingRule(temperature=1.7),
    SamplingRule(temperature=1.0, top_k=5),
    SamplingRule(temperature=1.0, top_k=1000),
    SamplingRule(temperature=1.0, top_p=0.9),
    SamplingRule(temperature=1.0, top_p=0.05),
    SamplingRule(temperature=1.0, min_p=0.1),
    SamplingRule(temperature=1.0, typical_p=0.3),
    SamplingRule(temperature=1.3, typical_p=0.95),
    SamplingRule(temperature=1.0, top_k=30, typical_p=0.5),
    SamplingRule(temperature=0.7, top_k=40, top_p=0.8, min_p=0.02),
    SamplingRule(temperature=0.7, top_k=40, end_token_ids=(2, 7), first_end_position=12),
    SamplingRule(temperature=1.0, repetition_penalty=1.3),
    SamplingRule(temperature=1.0, repetition_penalty=0.8),
    SamplingRule(temperature=1.0, logit_bias=((3, 2.5), (17, -100.0))),
    SamplingRule(temperature=1.0, banned_token_ids=(5, 6, 299)),
    SamplingRule(temperature=1.0, allowed_token_ids=(5, 6, 299, 12)),
    SamplingRule(
        temperature=0.9,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        typical_p=0.8,
        repetition_penalty=1.2,
        logit_bias=((3, 2.5), (9, -1.0)),
        banned_token_ids=(5, 6),
        allowed_token_ids=tuple(range(100)),
        end_token_ids=(2, 7),
        first_end_position=12,
    ),
    SamplingRule(repetition_penalty=1.5, logit_bias=((3, 2.5),), banned_token_ids=(8,)),
]


def row(rule: SamplingRule, position: int) -> Row:
    return Row(rule, position, CONTEXT)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_filters_equal_transformers(rule: SamplingRule, spread: float) -> None:
    logits = torch.randn(20, VOCABULARY, generator=torch.Generator().manual_seed(0)) * spread
    got = apply_filters(logits, [row(rule, position + 1) for position in range(20)])
    for index in range(20):
        assert torch.equal(got[index], processed(rule, logits[index], CONTEXT[: index + 1])), index


def test_presence_and_frequency_count_what_was_generated_and_nothing_before() -> None:
    """OpenAI's formula: ``logit - count * frequency - (count > 0) * presence``; transformers has no such processor."""
    rule = SamplingRule(presence_penalty=0.5, frequency_penalty=0.25, first_generated_position=3)
    context = [1, 2, 2, 2, 4, 2, 9]
    logits = torch.zeros(1, 12)
    got = apply_filters(logits, [Row(rule, 6, context)])[0]
    expected = torch.zeros(12)
    expected[2] = -0.5 - 2 * 0.25
    expected[4] = -0.5 - 0.25
    assert torch.equal(got, expected)
    assert not logits.any(), "the logits given must stay as they were"


def test_repetition_divides_first_and_presence_comes_after() -> None:
    rule = SamplingRule(repetition_penalty=2.0, presence_penalty=1.0)
    got = apply_filters(torch.tensor([[3.0, -3.0, 1.0]]), [Row(rule, 2, [0, 1])])[0]
    assert got.tolist() == [0.5, -7.0, 1.0]


def test_a_structures_mask_removes_what_it_does_not_allow() -> None:
    allowed = np.array([True, False, True])
    got = apply_filters(torch.zeros(2, 3), [Row(SamplingRule(), 0, allowed=allowed), Row(SamplingRule(), 0)])
    assert got.tolist() == [[0.0, -torch.inf, 0.0], [0.0, 0.0, 0.0]]


def test_a_smaller_vocabulary_leaves_tokens_it_lacks_alone() -> None:
    rule = SamplingRule(repetition_penalty=2.0, frequency_penalty=1.0)
    got = apply_filters(torch.ones(1, 3), [Row(rule, 3, [2, 50, 7])])[0]
    assert got.tolist() == [1.0, 1.0, -0.5]


def test_each_row_follows_its_own_rule_whatever_stands_beside_it() -> None:
    logits = torch.randn(len(RULES), VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    together = apply_filters(logits, [row(rule, 9) for rule in RULES])
    for index, rule in enumerate(RULES):
        assert torch.equal(together[index], apply_filters(logits[index : index + 1], [row(rule, 9)])[0]), rule


def test_a_greedy_row_is_left_alone_beside_sampled_ones() -> None:
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(2))
    got = apply_filters(logits, [Row(SamplingRule(), 0), Row(SamplingRule(temperature=0.5, top_k=3, min_p=0.5), 0)])
    assert torch.equal(got[0], logits[0])
