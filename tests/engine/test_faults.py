"""Rows in which nothing can be chosen are errors by name; every legal rule leaves numbers to choose
among."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipstream.errors import SlipstreamError
from slipstream.sampling.outcome import TokenDistribution
from slipstream.sampling.row import VOID, Proposed, Row
from slipstream.sampling.rule import MAX_LOGIT_BIAS, Acceptance, SamplingRule, sampling_violations
from slipstream.sampling_fields import (
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
    MIN_TEMPERATURE,
)
from tests.oracle import apply_filters
from tests.tensors import choose

VOCABULARY = 50
EMPTY = [
    SamplingRule(allowed_token_ids=(5,), banned_token_ids=(5,)),
    SamplingRule(allowed_token_ids=(2,), end_token_ids=(2,), first_end_position=99),
    SamplingRule(banned_token_ids=tuple(range(VOCABULARY))),
]
KINDS = {
    "greedy": {},
    "coupled": {"temperature": 1.0},
    "ratio": {"temperature": 1.0, "acceptance": Acceptance.RATIO},
}


def logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(6))


def rows_of(rules: list[SamplingRule], *, drafting: bool) -> list[Row]:
    proposed = Proposed(4, TokenDistribution((4, 7), (0.5, 0.5)))
    tested = [None if drafting or not rule.draws_ratios else proposed for rule in rules]
    return [
        Row(rule, index, proposed=test, drafting=drafting, candidate_count=8)
        for index, (rule, test) in enumerate(zip(rules, tested, strict=True))
    ]


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("empty", EMPTY, ids=["allowed and banned", "the end alone, held back", "all banned"])
def test_a_rule_that_leaves_no_token_is_an_error_by_name_and_harms_no_other_row(
    empty: SamplingRule, kind: str, drafting: bool
) -> None:
    good, bad = SamplingRule(**KINDS[kind]), replace(empty, **KINDS[kind])
    rows = rows_of([good, bad, good], drafting=drafting)
    given_logits = logits(3)
    first, fault, third = choose(given_logits, rows)
    assert fault.token == VOID
    assert isinstance(fault.fault, SlipstreamError) and fault.fault.reason == "NO_TOKEN_TO_CHOOSE"
    assert fault.fault.metadata == {"position": "1"}
    assert [first, third] == choose(given_logits[[0, 2]], [rows[0], rows[2]])


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_row_that_holds_no_numbers_is_an_error_by_name_and_harms_no_other(
    bad: float, kind: str, drafting: bool, everywhere: bool
) -> None:
    rows = rows_of([SamplingRule(**KINDS[kind])] * 3, drafting=drafting)
    given_logits = logits(3)
    given_logits[1, slice(None) if everywhere else slice(7, 8)] = bad
    first, fault, third = choose(given_logits, rows)
    assert fault.token == VOID
    assert isinstance(fault.fault, SlipstreamError) and fault.fault.reason == "LOGITS_NOT_FINITE"
    assert [first, third] == choose(given_logits[[0, 2]], [rows[0], rows[2]])


def at_limits(low: float, high: float, *others: float) -> st.SearchStrategy[float]:
    return st.sampled_from([low, high, *others])


RULES = st.builds(
    SamplingRule,
    temperature=at_limits(0.0, MIN_TEMPERATURE, MAX_TEMPERATURE, 1.0),
    top_k=st.sampled_from([0, 1, 7]),
    top_p=at_limits(1e-30, 1.0),
    min_p=at_limits(0.0, 1.0, 0.1),
    typical_p=at_limits(1e-30, 1.0, 0.5),
    repetition_penalty=at_limits(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY, 1.0),
    presence_penalty=at_limits(-MAX_PENALTY, MAX_PENALTY, 0.0),
    frequency_penalty=at_limits(-MAX_PENALTY, MAX_PENALTY, 0.0),
    logit_bias=st.sampled_from([(), ((1, MAX_LOGIT_BIAS), (5, -MAX_LOGIT_BIAS)), ((5, MAX_LOGIT_BIAS),)]),
    allowed_token_ids=st.sampled_from([(), (1,), (5, 6)]),
    acceptance=st.sampled_from(Acceptance),
    seed=st.integers(0, 2**63 - 1),
)


@pytest.mark.parametrize("size", [12, 4096, 152_064])
@settings(max_examples=60, deadline=None)
@example(
    rule=SamplingRule(temperature=100.0, typical_p=1e-30, seed=0),
    dtype=torch.bfloat16,
    scale=0.001,
    repeats=1,
    drafting=False,
)
@given(
    rule=RULES,
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    scale=at_limits(1e-3, 1e5, 30.0),
    repeats=at_limits(1, 30_000),
    drafting=st.booleans(),
)
def test_every_legal_rule_leaves_finite_numbers_and_a_token(
    size: int, rule: SamplingRule, dtype: torch.dtype, scale: float, repeats: float, drafting: bool
) -> None:
    assert not sampling_violations(rule)
    context = [1, 5, 5] * int(repeats)
    given_logits = (torch.randn(1, size, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)
    row = Row(rule, len(context), context, drafting=drafting, candidate_count=8)
    filtered = apply_filters(given_logits, [row])
    assert not filtered.isnan().any() and filtered.amax().isfinite()
    (choice,) = choose(given_logits, [row])
    assert choice.fault is None and not np.isnan(choice.margin) and np.isfinite(choice.logprob)
    assert filtered[0, choice.token] > -torch.inf


@pytest.mark.parametrize(
    ("field", "bound", "beyond"),
    [
        ("temperature", MIN_TEMPERATURE, 9e-7),
        ("temperature", MAX_TEMPERATURE, 101.0),
        ("repetition_penalty", MIN_REPETITION_PENALTY, 0.009),
        ("repetition_penalty", MAX_REPETITION_PENALTY, 3e38),
        ("min_p", 1.0, 1.001),
        ("presence_penalty", -MAX_PENALTY, -2.001),
    ],
)
def test_a_field_may_be_at_its_limit_also_after_it_has_travelled_as_float32(
    field: str, bound: float, beyond: float
) -> None:
    travelled = struct.unpack("f", struct.pack("f", bound))[0]
    assert not sampling_violations(SamplingRule(**{field: bound}))
    assert not sampling_violations(SamplingRule(**{field: travelled}))
    assert [v.field for v in sampling_violations(SamplingRule(**{field: beyond}))] == [field]
