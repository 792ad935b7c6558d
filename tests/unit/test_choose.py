"""Which way a row chooses: by its rule, by who asks, and by what is known at its position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from slipstream.sampling.choose import choose
from slipstream.sampling.filters import is_processed
from slipstream.sampling.outcome import TokenDistribution
from slipstream.sampling.row import VOID, Choice, Proposed, Row
from slipstream.sampling.rule import Acceptance, SamplingRule
from slipstream.sampling.structure import Structure, StructureKind

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


def test_after_a_proposals_end_the_ratio_test_chooses_as_coupled_sampling_does() -> None:
    rows, coupled = [[Row(rule, position) for position in range(8)] for rule in (RATIO, COUPLED)]
    assert choose(LOGITS, rows) == choose(LOGITS, coupled)
    assert choose(LOGITS, [replace(row, proposed=SENT) for row in coupled]) == choose(LOGITS, coupled)


def test_a_greedy_rule_has_no_use_for_a_distribution_under_either_acceptance() -> None:
    rule = replace(GREEDY, acceptance=Acceptance.RATIO)
    rows = [Row(rule, position, proposed=SENT) for position in range(8)]
    assert [choice.token for choice in choose(LOGITS, rows)] == LOGITS.argmax(1).tolist()
    assert [each.draws_ratios for each in (rule, COUPLED, RATIO)] == [False, False, True]


def test_a_void_row_is_void_whatever_its_logits_are() -> None:
    """It comes after a token that breaks the structure: what the model computed there is nobody's fault."""
    logits = LOGITS[:2].clone()
    logits[0] = float("nan")
    assert VOID < 0, "it is no token's id"
    for rule in (STRUCTURED, replace(STRUCTURED, temperature=1.0)):
        assert choose(logits, [Row(rule, 0), Row(rule, 1)]) == [Choice(VOID, float("inf"))] * 2


def test_only_a_row_that_something_changes_is_processed() -> None:
    for rule in (GREEDY, COUPLED, replace(COUPLED, top_p=0.9, top_k=3, min_p=0.1, typical_p=0.9)):
        assert not is_processed(Row(rule, 5)), rule
    held_back = replace(GREEDY, end_token_ids=(2,), first_end_position=5)
    assert [is_processed(Row(held_back, position)) for position in (4, 5)] == [True, False]
    for rule in (replace(GREEDY, repetition_penalty=1.1), replace(GREEDY, logit_bias=((1, 1.0),))):
        assert is_processed(Row(rule, 5)), rule
    for field in ("allowed_token_ids", "banned_token_ids"):
        assert is_processed(Row(replace(GREEDY, **{field: (1,)}), 5)), field
    for field in ("presence_penalty", "frequency_penalty"):
        assert is_processed(Row(replace(GREEDY, **{field: 0.5}), 5)), field
    assert is_processed(Row(STRUCTURED, 5, allowed=np.ones(60, bool)))
