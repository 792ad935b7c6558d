"""transformers' own processors are the oracle, in transformers' own order."""

import random

import numpy as np
import pytest
import torch

from slipstream.sampling.filters import filtered, nearest_first
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from tests.oracle import apply_filters, processed
from tests.vector_lanes import SAME_LANES

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
    """OpenAI's formula: ``logit - count * frequency - (count > 0) * presence``; transformers has no
    such processor."""
    rule = SamplingRule(presence_penalty=0.5, frequency_penalty=0.25, first_generated_position=3)
    context = [1, 2, 2, 2, 4, 2, 9]
    logits = torch.zeros(1, 12)
    got = apply_filters(logits, [Row(rule, 6, context)])[0]
    expected = torch.zeros(12)
    expected[2] = -0.5 - 2 * 0.25
    expected[4] = -0.5 - 0.25
    assert torch.equal(got, expected)
    assert not logits.any(), "the logits given must stay as they were"


@pytest.mark.parametrize(("presence", "frequency", "expected"), [(0.5, 0.0, -0.5), (0.0, 0.5, -1.0), (-0.5, 0.0, 0.5)])
def test_presence_and_frequency_each_count_alone(presence: float, frequency: float, expected: float) -> None:
    rule = SamplingRule(presence_penalty=presence, frequency_penalty=frequency)
    got = apply_filters(torch.zeros(1, 3), [Row(rule, 2, [1, 1, 2])])[0]
    assert got.tolist() == [0.0, expected, 0.0]


@pytest.mark.parametrize("rule", [SamplingRule(), *RULES], ids=str)
def test_logits_of_fewer_bits_are_widened_before_anything_else(rule: SamplingRule) -> None:
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(3)).bfloat16()
    given, rows = logits.clone(), [row(rule, position) for position in (9, 10, 11)]
    got = apply_filters(logits, rows)
    assert got.dtype == torch.float32
    assert torch.equal(got, apply_filters(logits.float(), rows)) and torch.equal(logits, given)


def test_end_tokens_are_held_back_up_to_the_first_end_position_beside_other_rules() -> None:
    rule = SamplingRule(end_token_ids=(0,), first_end_position=12, logit_bias=((1, 1.0),), presence_penalty=0.5)
    got = apply_filters(torch.zeros(3, 3), [Row(rule, position, [2] * 20) for position in (11, 12, 13)])
    assert got.tolist() == [[-torch.inf, 1.0, -0.5], [0.0, 1.0, -0.5], [0.0, 1.0, -0.5]]


@SAME_LANES
def test_where_the_mass_asked_for_is_reached_to_the_bit_the_cut_is_transformers() -> None:
    """The comparison decides there: a token more or less changes the text."""
    for seed in range(8):
        logits = torch.randn(1, 9, generator=torch.Generator().manual_seed(seed))
        reached = logits.sort(dim=-1).values.softmax(-1).cumsum(-1)[0]
        logprobs = logits.log_softmax(-1)
        entropy = -(logprobs * logprobs.exp()).nansum(-1, keepdim=True)
        nearest = logits.gather(-1, (-logprobs - entropy).abs().argsort(stable=True)).softmax(-1).cumsum(-1)[0]
        rules = [SamplingRule(temperature=1.0, top_p=1 - float(mass)) for mass in reached[:-1]]
        rules += [SamplingRule(temperature=1.0, typical_p=float(mass)) for mass in nearest[:-1]]
        rules += [SamplingRule(temperature=1.0, top_p=1e-30), SamplingRule(temperature=1.0, typical_p=1e-30)]
        rules += [SamplingRule(temperature=1.0, typical_p=1 - 1e-7)]
        for rule in rules:
            got = apply_filters(logits, [Row(rule, 0)])[0]
            assert torch.equal(got, processed(rule, logits[0], [0])), rule
            assert got.isfinite().any()


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_equal_logits_at_the_border_of_a_top_k_all_stay(k: int) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    rule = SamplingRule(temperature=1.0, top_k=k)
    assert torch.equal(apply_filters(logits, [Row(rule, 0)])[0], processed(rule, logits[0], [0]))


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
    got = apply_filters(torch.ones(1, 3), [Row(rule, 4, [2, 50, 3, 7])])[0]
    assert got.tolist() == [1.0, 1.0, -0.5]


def test_each_row_follows_its_own_rule_beside_any_other() -> None:
    logits = torch.randn(len(RULES), VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    together = apply_filters(logits, [row(rule, 9) for rule in RULES])
    for index, rule in enumerate(RULES):
        assert torch.equal(together[index], apply_filters(logits[index : index + 1], [row(rule, 9)])[0]), rule


def test_a_greedy_row_is_left_alone_beside_sampled_ones() -> None:
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(2))
    got = apply_filters(logits, [Row(SamplingRule(), 0), Row(SamplingRule(temperature=0.5, top_k=3, min_p=0.5), 0)])
    assert torch.equal(got[0], logits[0])
    cut = SamplingRule(top_k=3, top_p=0.5, min_p=0.5, typical_p=0.5)
    got = apply_filters(logits, [Row(cut, 0), Row(SamplingRule(temperature=1.0, top_k=3), 0)])
    assert torch.equal(got[0], logits[0]), "what filters it names is for sampling"


def test_rows_of_one_step_have_their_own_contexts_and_share_them_by_their_positions() -> None:
    rule, other = SamplingRule(presence_penalty=1.0), SamplingRule(repetition_penalty=2.0)
    first, second = [0, 1, 2], [3, 3, 3]
    rows = [Row(rule, 1, first), Row(rule, 3, second), Row(rule, 3, first), Row(other, 2, first), Row(rule, 0, second)]
    got = apply_filters(torch.ones(5, 4), rows)
    assert got.tolist() == [[0, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 1], [0.5, 0.5, 1, 1], [1, 1, 1, 1]]


def test_distances_are_sorted_as_torch_sorts_them_equals_in_their_order() -> None:
    values = torch.randn(4000, generator=torch.Generator().manual_seed(1)).bfloat16().float()  # equals by the dozen
    values[7:900] = -torch.inf
    for distances in (values.abs(), torch.full((4000,), 0.5)):
        found, order = nearest_first(distances.numpy())
        expected, expected_order = distances.sort(stable=True)
        assert np.array_equal(found, expected.numpy()) and np.array_equal(order, expected_order.numpy())


@pytest.mark.parametrize("n", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_top_n_sigma_keeps_logits_near_the_largest_at_any_temperature(n: float, temperature: float) -> None:
    logits = np.random.default_rng(1).normal(0, 3, (20, VOCABULARY)).astype(np.float32)
    logits[:, ::7] = -np.inf  # removed by a structure or a ban: these have no part in the deviation
    left = filtered(logits, [SamplingRule(temperature=temperature, top_n_sigma=n)] * 20)
    for row, kept in zip(logits.astype(np.float64), np.isfinite(left), strict=True):
        finite = row[np.isfinite(row)]
        assert kept.tolist() == (row >= finite.max() - n * finite.std()).tolist()
        assert 0 < kept.sum() < len(finite)


def test_top_n_sigma_of_0_keeps_every_token() -> None:
    logits = np.random.default_rng(1).normal(0, 3, (1, VOCABULARY)).astype(np.float32)
    assert np.array_equal(filtered(logits, [SamplingRule(temperature=1.0, top_n_sigma=0.0)]), logits)
