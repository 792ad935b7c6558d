"""The loss of a distillation is what the sampler does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.distilling.objective import (
    draft_logprobs,
    expected_acceptance,
    rejection,
    target_probabilities,
)
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from tests.tensors import choose

VOCABULARY = 300
KNOWN = 64
GENERATOR = torch.Generator().manual_seed(11)


def pair(spread: float, apart: float, rows: int = 1, size: int = VOCABULARY) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of a target and of a draft."""
    target = torch.randn(rows, size, generator=GENERATOR) * spread
    return target, target + torch.randn(rows, size, generator=GENERATOR) * apart


def top(target: torch.Tensor, count: int = KNOWN) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is collected of a target's logits: ids and log-probabilities."""
    likeliest = target.log_softmax(-1).topk(count)
    return likeliest.indices, likeliest.values


def by_pairs(p: np.ndarray, q: np.ndarray) -> float:
    """Daliri et al.'s formula as it stands in their paper."""
    return sum(1 / float(np.maximum(p / p[i], q / q[i]).sum()) for i in range(len(p)))


@pytest.mark.parametrize(("spread", "apart", "temperature"), [(2.0, 0.7, 0.8), (1.0, 2.0, 1.0), (4.0, 1.0, 1.3)])
def test_expected_acceptance_is_that_of_the_coupled_sampler(spread: float, apart: float, temperature: float) -> None:
    draws = 20_000  # five standard errors: a false alarm in two million
    target, draft = pair(spread, apart)
    rows = [Row(SamplingRule(temperature=temperature, seed=3), position) for position in range(draws)]
    agreed = sum(
        mine.token == theirs.token
        for mine, theirs in zip(
            choose(target.expand(draws, -1), rows), choose(draft.expand(draws, -1), rows), strict=True
        )
    )
    p, q = (target / temperature).softmax(-1), (draft / temperature).softmax(-1)
    expected = float(expected_acceptance(p, q, bucket=False))
    assert abs(agreed / draws - expected) < 5 * (expected * (1 - expected) / draws) ** 0.5


def test_the_sorted_sum_is_the_sum_over_all_pairs() -> None:
    target, draft = pair(3.0, 1.5, rows=20)
    p, q = target.double().softmax(-1), draft.double().softmax(-1)
    expected = [by_pairs(*(each.numpy() for each in row)) for row in zip(p, q, strict=True)]
    torch.testing.assert_close(expected_acceptance(p, q, bucket=False), torch.tensor(expected, dtype=torch.double))
    assert float(expected_acceptance(p, p, bucket=False).min()) == pytest.approx(1)


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_a_bucket_is_off_by_no_more_than_its_smaller_probability(spread: float) -> None:
    target, draft = pair(spread, 1.0, rows=200)
    ids, _ = top(target)
    whole_p, whole_q = target.double().softmax(-1), draft.double().softmax(-1)
    p, q = (
        torch.cat([each.gather(-1, ids), 1 - each.gather(-1, ids).sum(-1, keepdim=True)], -1)
        for each in (whole_p, whole_q)
    )
    off = (expected_acceptance(p, q) - expected_acceptance(whole_p, whole_q, bucket=False)).abs()
    assert (off <= torch.minimum(p[:, -1], q[:, -1]) + 1e-9).all()


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0])
def test_the_targets_probabilities_are_known_up_to_its_bucket(temperature: float) -> None:
    target, _ = pair(3.0, 0.0, rows=50)
    ids, logprobs = top(target)
    exact = (target / temperature).softmax(-1).gather(-1, ids)
    known = target_probabilities(logprobs, temperature, VOCABULARY)
    assert known.sum(-1).numpy() == pytest.approx(1)
    assert (known[:, -1] >= 1 - exact.sum(-1) - 1e-6).all(), "the bucket gets the most that is possible"
    torch.testing.assert_close(known[:, :-1] / known[:, :1], exact / exact[:, :1])


def test_a_greedy_target_is_its_likeliest_token() -> None:
    ids, logprobs = top(pair(2.0, 0.0)[0])
    p = target_probabilities(logprobs, 0.0, VOCABULARY)
    assert p[0, 0] == 1 and p[0, 1:].sum() == 0
    logits = torch.zeros(1, VOCABULARY)
    logits[0, ids[0, 0]] = 5.0
    q = draft_logprobs(logits, ids, 1.0).exp()
    assert float(expected_acceptance(p, q)) == pytest.approx(float(q[0, 0]), rel=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("kl_weight", [0.0, 0.5])
def test_a_step_down_the_gradient_is_accepted_more_often(temperature: float, kl_weight: float) -> None:
    target, draft = pair(2.0, 1.0, rows=30)
    ids, logprobs = top(target)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return rejection(
            logits, ids, logprobs, temperature=temperature, kl_weight=kl_weight, vocabulary_size=VOCABULARY
        )

    logits = draft.clone().requires_grad_()
    loss(logits).backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
    with torch.no_grad():
        better = logits - 0.5 * logits.grad * len(logits)
    assert float(loss(better)) < float(loss(draft))
    p = target_probabilities(logprobs, temperature, VOCABULARY)
    at = temperature or 0.5
    before, after = (expected_acceptance(p, draft_logprobs(each, ids, at).exp()).mean() for each in (draft, better))
    assert after > before


def test_extreme_logits_have_a_gradient() -> None:
    target, _ = pair(1.0, 0.0)
    ids, logprobs = top(target * 60)
    logits = (-target * 60).requires_grad_()
    rejection(logits, ids, logprobs, temperature=0.8, kl_weight=0.5, vocabulary_size=VOCABULARY).backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all() and logits.grad.abs().max() > 0.01


def test_a_draft_with_fewer_rows_gives_the_tokens_beyond_them_no_probability() -> None:
    logits = torch.randn(2, 10, generator=GENERATOR)
    q = draft_logprobs(logits, torch.tensor([[3, 12], [11, 0]]), 1.0).exp()
    assert q[0, 1] == q[1, 0] == 0
    torch.testing.assert_close(q[0, 0], logits.softmax(-1)[0, 3])
