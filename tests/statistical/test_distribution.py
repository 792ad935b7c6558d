"""Coupled sampling draws from the target's own distribution, whatever the draft says.

Each test compares counts with exact probabilities by chi-square and fails at p < 1e-6: with a correct sampler a run of all
of them raises a false alarm about once in a hundred thousand. Seeds are fixed, so a pass stays a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from slipstream.sampling.coupled import accepted_count, choose
from slipstream.sampling.filters import apply_filters
from slipstream.sampling.rule import SamplingRule

VOCABULARY = 12
DRAWS = 40_000
FALSE_ALARM = 1e-6
GENERATOR = torch.Generator().manual_seed(5)
TARGET = torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR) * 1.5  # next-token logits by previous token
NEAR_DRAFT = TARGET + torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR) * 0.5
ADVERSARIAL_DRAFT = -3 * TARGET
FAR_DRAFT = TARGET + torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR) * 2

RULES = {
    "plain": SamplingRule(temperature=1.0),
    "cold": SamplingRule(temperature=0.6),
    "top_k": SamplingRule(temperature=1.0, top_k=5),
    "top_p": SamplingRule(temperature=1.0, top_p=0.8),
    "min_p": SamplingRule(temperature=1.3, min_p=0.1),
}


def p_value(counts: Sequence[float], probabilities: np.ndarray) -> float:
    observed, expected = np.asarray(counts, dtype=float), probabilities * np.sum(counts)
    assert observed[expected == 0].sum() == 0, "a filtered token was served"
    rare = expected < 5  # pooled, as the chi-square approximation wants it
    kept = ~rare & (expected > 0)
    pooled_observed = np.append(observed[kept], observed[rare].sum())
    pooled_expected = np.append(expected[kept], expected[rare].sum())
    if pooled_expected[-1] < 5:
        pooled_observed, pooled_expected = pooled_observed[:-1], pooled_expected[:-1]
        pooled_expected *= pooled_observed.sum() / pooled_expected.sum()
    return float(chisquare(pooled_observed, pooled_expected).pvalue)


def filtered_probabilities(rule: SamplingRule) -> np.ndarray:
    """Exact next-token probabilities by previous token, float64 ``[vocabulary, vocabulary]``."""
    filtered = apply_filters(TARGET, [rule] * VOCABULARY, [0] * VOCABULARY)
    return np.asarray(filtered.double().softmax(-1).numpy())


def with_seed(rule: SamplingRule, seed: int) -> SamplingRule:
    return SamplingRule(rule.temperature, rule.top_k, rule.top_p, rule.min_p, seed)


def served(rule: SamplingRule, draft: torch.Tensor, draft_length: int, token_count: int) -> list[list[int]]:
    """DRAWS sequences after token 0, one seed each, by rounds of propose, verify and commit, all sequences abreast."""
    rules = [with_seed(rule, seed) for seed in range(DRAWS)]
    texts = [[0] for _ in range(DRAWS)]
    while True:
        open_ = [i for i in range(DRAWS) if len(texts[i]) <= token_count]
        if not open_:
            return [text[1 : token_count + 1] for text in texts]
        proposals: dict[int, list[int]] = {i: [] for i in open_}
        for _ in range(draft_length):
            last = [proposals[i][-1] if proposals[i] else texts[i][-1] for i in open_]
            at = [len(texts[i]) + len(proposals[i]) for i in open_]
            for i, choice in zip(open_, choose(draft[last], [rules[i] for i in open_], at), strict=True):
                proposals[i].append(choice.token)
        rows = [(i, [texts[i][-1], *proposals[i]]) for i in open_]
        contexts = [token for _, window in rows for token in window]
        at = [len(texts[i]) + k for i, window in rows for k in range(len(window))]
        picked = choose(TARGET[contexts], [rules[i] for i, window in rows for _ in window], at)
        cursor = 0
        for i, window in rows:
            choices = [choice.token for choice in picked[cursor : cursor + len(window)]]
            cursor += len(window)
            count = accepted_count(proposals[i], choices)
            texts[i] += [*proposals[i][:count], choices[count]]


@pytest.mark.parametrize("name", RULES)
def test_one_token_follows_the_filtered_distribution(name: str) -> None:
    rule = RULES[name]
    rules = [with_seed(rule, seed) for seed in range(DRAWS)]
    choices = choose(TARGET[:1].expand(DRAWS, -1), rules, [7] * DRAWS)
    counts = Counter(choice.token for choice in choices)
    assert p_value([counts[token] for token in range(VOCABULARY)], filtered_probabilities(rule)[0]) > FALSE_ALARM


@pytest.mark.parametrize("draft_name", ["near", "adversarial"])
@pytest.mark.parametrize("draft_length", [1, 3])
def test_three_tokens_follow_the_joint_distribution_whatever_the_draft(draft_name: str, draft_length: int) -> None:
    draft = NEAR_DRAFT if draft_name == "near" else ADVERSARIAL_DRAFT
    rule = RULES["cold"]
    counts = Counter(tuple(text) for text in served(rule, draft, draft_length, 3))
    p = filtered_probabilities(rule)
    joint = (p[0][:, None, None] * p[:, :, None] * p[None, :, :]).reshape(-1)
    observed = [counts[a, b, c] for a in range(VOCABULARY) for b in range(VOCABULARY) for c in range(VOCABULARY)]
    assert p_value(observed, joint) > FALSE_ALARM


def test_the_text_itself_does_not_depend_on_the_draft() -> None:
    rule = RULES["plain"]
    reference = served(rule, NEAR_DRAFT, 0, 3)
    assert served(rule, NEAR_DRAFT, 2, 3) == reference
    assert served(rule, ADVERSARIAL_DRAFT, 3, 3) == reference


@pytest.mark.parametrize("shared", [True, False])
def test_the_statistic_sees_noise_shared_with_the_ratio_test(shared: bool) -> None:
    """The known bug: under min(1, p/q) the recovered token is drawn with the noise that drew the draft's. It must fail
    here; with noise of its own the same ratio test must pass."""
    p, q = (np.asarray(logits[0].double().softmax(-1).numpy()) for logits in (TARGET, FAR_DRAFT))
    rules = [with_seed(RULES["plain"], seed) for seed in range(DRAWS)]
    drafted = [c.token for c in choose(FAR_DRAFT[:1].expand(DRAWS, -1), rules, [7] * DRAWS)]
    with np.errstate(divide="ignore"):
        residual = torch.tensor(np.log(np.maximum(0, p - q))).expand(DRAWS, -1)
    position = 7 if shared else 8
    recovered = [c.token for c in choose(residual, rules, [position] * DRAWS)]
    coins = np.random.default_rng(0).random(DRAWS)
    served_tokens = [d if coins[i] < p[d] / q[d] else recovered[i] for i, d in enumerate(drafted)]
    counts = Counter(served_tokens)
    p_of_counts = p_value([counts[token] for token in range(VOCABULARY)], p)
    assert (p_of_counts < FALSE_ALARM) == shared
