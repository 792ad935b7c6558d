"""A run's steps choose what as many rows by themselves choose, whichever way is the shortest for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.sampling.choose import choose, is_plain_draw
from slipstream.sampling.row import Row
from slipstream.sampling.rule import Acceptance, SamplingRule
from slipstream.sampling.steps import steps_of

PLAIN = SamplingRule(temperature=0.7, seed=9)
RULES = [
    SamplingRule(),
    PLAIN,
    SamplingRule(temperature=0.7, seed=9, top_p=0.8),
    SamplingRule(temperature=0.7, seed=9, repetition_penalty=1.2),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("size", [90, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_choose_and_describe_what_rows_do(rule: SamplingRule, size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(11, 3, size, generator=generator) * 4).to(dtype)

    def rows_at(step: int) -> list[Row]:
        return [Row(rule, start + step, [1, 2, 3, 4] * 9, drafting=True) for start in (20, 7, 15)]

    steps, memory = steps_of(rows_at, size), torch.empty(3, size, dtype=dtype)
    tokens = [steps.choose(memory.copy_(step)) for step in logits]  # one memory, as the model's own
    expected = [choose(step, rows_at(index)) for index, step in enumerate(logits)]
    assert tokens == [[choice.token for choice in step] for step in expected]
    for ours, theirs in zip(steps.choices(), expected, strict=True):
        for got, choice in zip(ours, theirs, strict=True):
            assert got.token == choice.token and type(got.token) is int
            assert type(got.margin) is type(got.logprob) is float
            assert got.logprob == pytest.approx(choice.logprob, abs=1e-4)
            assert got.margin == pytest.approx(choice.margin, abs=1e-5) or 0.09 < got.margin < choice.margin


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_step_that_holds_no_numbers_is_an_error_by_name(rule: SamplingRule) -> None:
    logits = torch.randn(2, 90, generator=torch.Generator().manual_seed(1))
    steps = steps_of(lambda step: [Row(rule, 5 + step, [1, 2, 3] * 9, drafting=True) for _ in range(2)], 90)
    steps.choose(logits)
    steps.choose(torch.stack((logits[0], torch.full_like(logits[1], np.nan))))
    described = steps.choices()
    assert [[choice.fault is None for choice in step] for step in described] == [[True, True], [True, False]]


def test_only_a_coupled_row_that_nothing_changes_or_cuts_is_a_plain_draw() -> None:
    assert is_plain_draw(Row(PLAIN, 5))
    ratio = SamplingRule(temperature=0.7, acceptance=Acceptance.RATIO)
    assert not is_plain_draw(Row(ratio, 5, drafting=True))
    cuts: list[dict[str, float]] = [
        {"temperature": 0.0},
        {"top_k": 3},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"typical_p": 0.9},
    ]
    for change in cuts:
        assert not is_plain_draw(Row(SamplingRule(**{"temperature": 0.7, **change}), 5)), change
    for rule in (replace(PLAIN, banned_token_ids=(1,)), replace(PLAIN, logit_bias=((1, 1.0),))):
        assert not is_plain_draw(Row(rule, 5))
