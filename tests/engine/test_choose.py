"""Which way a row chooses: by its rule, by who asks, and by what is known at its position."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.choose import choose_apart
from slipstream.sampling.filters import filtered
from slipstream.sampling.outcome import TokenDistribution
from slipstream.sampling.row import VOID, Choice, Proposed, Row
from slipstream.sampling.rule import Acceptance, SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from tests.tensors import blocked, choose

GREEDY = SamplingRule()
COUPLED = SamplingRule(temperature=1.0, seed=3)
RATIO = replace(COUPLED, acceptance=Acceptance.RATIO)
STRUCTURED = SamplingRule(structure=Structure(StructureKind.REGEX, "a+"))
LOGITS = torch.randn(8, 60, generator=torch.Generator().manual_seed(3))
SENT = Proposed(9, TokenDistribution((9, 8), (0.5, 0.5)))


def test_rows_of_every_kind_choose_together_as_they_would_alone() -> None:
    allowed = np.zeros(60, bool)
    allowed[[4, 5]] = True
    rows = [
        Row(STRUCTURED, 1),
        Row(RATIO, 2, proposed=SENT),
        Row(GREEDY, 3, drafting=True, candidate_count=3),
        Row(COUPLED, 4, drafting=True, candidate_count=3),
        Row(RATIO, 5),
        Row(STRUCTURED, 6, allowed=allowed),
        Row(RATIO, 7, drafting=True),
        Row(replace(GREEDY, acceptance=Acceptance.RATIO), 8, proposed=SENT),
    ]
    together = choose(LOGITS, rows)
    for index, row in enumerate(rows):
        assert together[index].token == choose(LOGITS[index : index + 1], [row])[0].token
        assert together[index].distribution == choose(LOGITS[index : index + 1], [row])[0].distribution
    assert together[5].token in (4, 5)
    assert [choice.distribution is not None for choice in together] == [index == 6 for index in range(8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_their_rules_change_and_others_choose_together_as_they_would_alone(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    first, second = (tuple(map(int, logits[row].topk(3).indices)) for row in (1, 4))
    rules = [
        GREEDY,
        replace(GREEDY, banned_token_ids=first),
        COUPLED,
        GREEDY,
        replace(GREEDY, allowed_token_ids=second[1:]),
        replace(COUPLED, logit_bias=((7, 50.0),)),
        replace(COUPLED, seed=4),
        replace(GREEDY, end_token_ids=(int(logits[7].argmax()),), first_end_position=8),
    ]
    rows = [Row(rule, position) for position, rule in enumerate(rules)]
    together = choose(logits, rows)
    assert together == [choose(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
    assert together[1].token not in first and together[4].token == second[1] and together[5].token == 7
    assert together[7].token == int(logits[7].topk(2).indices[1])
    assert [together[row].token for row in (0, 3)] == logits[[0, 3]].argmax(1).tolist()


@pytest.mark.parametrize("filter_", [{"typical_p": 0.7}, {"top_n_sigma": 1.5}], ids=str)
def test_a_draw_under_a_filter_that_is_not_searched_is_a_coupled_draw_of_what_it_leaves(
    filter_: dict[str, float],
) -> None:
    logits, rule = LOGITS[:1].expand(50, -1).contiguous(), replace(COUPLED, **filter_)
    tokens = [choice.token for choice in choose(logits, [Row(rule, position) for position in range(50)])]
    left = filtered(logits.numpy(), [rule] * 50)
    assert tokens == [choice.token for choice in choose(left, [Row(COUPLED, position) for position in range(50)])]
    assert len(set(tokens)) > 3


def test_each_row_of_one_rule_holds_the_end_back_by_its_own_position() -> None:
    logits, end = LOGITS[:1].expand(2, -1).contiguous(), int(LOGITS[0].argmax())
    rule = replace(GREEDY, end_token_ids=(end,), first_end_position=5)
    for positions in ((5, 4), (4, 5)):
        choices = choose(logits, [Row(rule, position) for position in positions])
        assert [choice.token == end for choice in choices] == [position == 5 for position in positions]


def test_where_choosing_fails_those_rows_fail_that_make_it_and_all_together_raise() -> None:
    wrong = Row(STRUCTURED, 1, allowed=np.ones(LOGITS.shape[1] - 1, bool))
    rows = [Row(GREEDY, 0), wrong, Row(COUPLED, 2)]
    choices = choose_apart(blocked(LOGITS[:3]), rows)
    assert choices[1].token == VOID and isinstance(choices[1].fault, ValueError)
    for index in (0, 2):
        assert choices[index] == choose(LOGITS[index : index + 1], [rows[index]])[0]
    with pytest.raises(ValueError, match="a structure's mask is of 59 tokens"):
        choose_apart(blocked(LOGITS[:2]), [wrong, wrong])


def test_after_a_proposals_end_the_ratio_test_chooses_as_coupled_sampling_does() -> None:
    rows, coupled = [[Row(rule, position) for position in range(8)] for rule in (RATIO, COUPLED)]
    assert choose(LOGITS, rows) == choose(LOGITS, coupled)
    assert choose(LOGITS, [replace(row, proposed=SENT) for row in coupled]) == choose(LOGITS, coupled)


def test_a_greedy_rule_has_no_use_for_a_distribution_under_either_acceptance() -> None:
    rule = replace(GREEDY, acceptance=Acceptance.RATIO)
    rows = [Row(rule, position, proposed=SENT) for position in range(8)]
    assert [choice.token for choice in choose(LOGITS, rows)] == LOGITS.argmax(1).tolist()
    assert [each.draws_ratios for each in (rule, COUPLED, RATIO)] == [False, False, True]


def test_a_void_row_is_void_with_any_logits() -> None:
    """It comes after a token that breaks the structure, so the logits there mean nothing, not even
    a failure of the model."""
    logits = LOGITS[:2].clone()
    logits[0] = float("nan")
    assert VOID < 0, "it is no token's id"
    for rule in (STRUCTURED, replace(STRUCTURED, temperature=1.0)):
        assert choose(logits, [Row(rule, 0), Row(rule, 1)]) == [Choice(VOID, float("inf"))] * 2


def test_only_a_row_that_something_changes_is_processed() -> None:
    for rule in (GREEDY, COUPLED, replace(COUPLED, top_p=0.9, top_k=3, min_p=0.1, typical_p=0.9)):
        assert not Row(rule, 5).is_processed, rule
    held_back = replace(GREEDY, end_token_ids=(2,), first_end_position=5)
    assert [Row(held_back, position).is_processed for position in (4, 5)] == [True, False]
    for rule in (replace(GREEDY, repetition_penalty=1.1), replace(GREEDY, logit_bias=((1, 1.0),))):
        assert Row(rule, 5).is_processed, rule
    for field in ("allowed_token_ids", "banned_token_ids"):
        assert Row(replace(GREEDY, **{field: (1,)}), 5).is_processed, field
    for field in ("presence_penalty", "frequency_penalty"):
        assert Row(replace(GREEDY, **{field: 0.5}), 5).is_processed, field
    assert Row(STRUCTURED, 5, allowed=np.ones(60, bool)).is_processed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_array_is_chosen_from_as_a_tensor_is(dtype: torch.dtype) -> None:
    tensor = LOGITS.to(dtype)
    array = tensor.view(torch.int16).numpy() if dtype is torch.bfloat16 else tensor.numpy()
    rules = [GREEDY, COUPLED, replace(GREEDY, repetition_penalty=1.5), replace(COUPLED, typical_p=0.6)]
    rules += [replace(COUPLED, top_p=0.8), replace(GREEDY, banned_token_ids=(3,))]
    for rule in rules:
        rows = [Row(rule, position, context=[1, 2, 3] * 4) for position in range(1, len(tensor) + 1)]
        assert choose(array, rows) == choose(tensor, rows), rule
        assert choose(BlockedLogits(array).subset([1, 0]), rows[:2]) == choose(tensor[[1, 0]], rows[:2]), rule


def test_a_model_that_has_arrays_is_served_without_torch() -> None:
    code = """
import sys, draft_service.proposer, verifier_service.verifier, slipstream.hosting.process
from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings
from slipstream.engine.engine import Append, Engine
from slipstream.engine.sequence import Sequence
from slipstream.sampling.rule import SamplingRule
engine, sequence = Engine(ArithmeticBackend(ArithmeticSettings()), kv_memory_mib=1), Sequence("s")
engine.cache.extend(sequence, [5, 6, 7])
for rule in SamplingRule(), SamplingRule(temperature=0.8, top_p=0.9, top_k=5):
    assert engine.step([Append(sequence, 3, 2, rule)])[0].choices
sys.exit("torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
