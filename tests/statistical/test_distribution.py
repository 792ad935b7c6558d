"""Served tokens follow the target's own distribution with any draft, under coupled sampling and the
ratio test.

The target is a table of next-token logits over 12 tokens, so that the exact distribution of the
next three tokens can be written down. The rounds are the real ones: propose, verify, commit the
longest equal prefix and the next token.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from slipstream.sampling import ratio
from slipstream.sampling.coupled import accepted_count
from slipstream.sampling.kernel import Domain
from slipstream.sampling.row import Choice, Proposed, Row
from slipstream.sampling.rule import Acceptance, SamplingRule
from tests.oracle import apply_filters
from tests.statistical.chi_square import FALSE_ALARM, p_value
from tests.tensors import choose

VOCABULARY = 12
DRAWS = 40_000
TEXTS = 3_000
DRAFT_LENGTHS = (1, 2, 3, 5)
GENERATOR = torch.Generator().manual_seed(5)
TARGET = torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR) * 1.5  # next-token logits by previous token
DRAFTS = {
    "near": TARGET + torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR) * 0.5,
    "adversarial": -3 * TARGET,
}
FAR_DRAFT = TARGET + torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR) * 2

RULES = {
    "plain": SamplingRule(temperature=1.0),
    "cold": SamplingRule(temperature=0.6),
    "top_k": SamplingRule(temperature=1.0, top_k=5),
    "top_p": SamplingRule(temperature=1.0, top_p=0.8),
    "min_p": SamplingRule(temperature=1.3, min_p=0.1),
    "typical_p": SamplingRule(temperature=1.0, typical_p=0.7),
    "penalties": SamplingRule(
        temperature=1.0,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        first_generated_position=1,
    ),
    "biases": SamplingRule(temperature=1.0, logit_bias=((3, 1.5), (4, -1.0)), banned_token_ids=(7,)),
    "narrow_proposals": SamplingRule(temperature=1.0, proposal_top_k=3),
}


def joint(rule: SamplingRule) -> np.ndarray:
    """Exact probabilities of the three tokens after token 0, float64 ``[V, V, V]``."""

    def next_token(context: list[int]) -> np.ndarray:
        filtered = apply_filters(TARGET[context[-1:]], [Row(rule, len(context), context)])
        return np.asarray(filtered[0].double().softmax(-1).numpy())

    first = next_token([0])
    exact = np.zeros((VOCABULARY,) * 3)
    for a in range(VOCABULARY):
        second = next_token([0, a])
        for b in range(VOCABULARY):
            exact[a, b] = first[a] * second[b] * next_token([0, a, b])
    return exact


def served(rule: SamplingRule, draft: torch.Tensor, draft_length: int, token_count: int, texts: int) -> list[list[int]]:
    """Texts after token 0, one seed each, by rounds of propose, verify and commit, all texts
    abreast."""
    rules = [replace(rule, seed=seed) for seed in range(texts)]
    contexts = [[0] for _ in range(texts)]
    while open_ := [i for i in range(texts) if len(contexts[i]) <= token_count]:
        drawn = _proposals(rules, contexts, open_, draft, draft_length)
        rows: list[Row] = []
        for i in open_:
            window = [*contexts[i], *(choice.token for choice in drawn[i])]
            tested = [c.distribution and Proposed(c.token, c.distribution) for c in drawn[i]]
            start = len(contexts[i])
            rows += [Row(rules[i], start + k, window, proposed=proposed) for k, proposed in enumerate([*tested, None])]
        picked = iter(choose(TARGET[[row.context[row.position - 1] for row in rows]], rows))
        for i in open_:
            choices = [next(picked).token for _ in range(draft_length + 1)]
            proposal = [choice.token for choice in drawn[i]]
            contexts[i] += choices[: accepted_count(proposal, choices) + 1]
    return [context[1 : token_count + 1] for context in contexts]


def _proposals(
    rules: list[SamplingRule], contexts: list[list[int]], open_: list[int], draft: torch.Tensor, draft_length: int
) -> dict[int, list[Choice]]:
    drawn: dict[int, list[Choice]] = {i: [] for i in open_}
    for _ in range(draft_length):
        windows = [[*contexts[i], *(choice.token for choice in drawn[i])] for i in open_]
        rows = [Row(rules[i], len(window), window, drafting=True) for i, window in zip(open_, windows, strict=True)]
        for i, choice in zip(open_, choose(draft[[window[-1] for window in windows]], rows), strict=True):
            drawn[i].append(choice)
    return drawn


def p_of_texts(texts: list[list[int]], exact: np.ndarray) -> float:
    counts = Counter(map(tuple, texts))
    return p_value([counts[index] for index in np.ndindex(exact.shape)], exact.reshape(-1))


@pytest.mark.parametrize("name", RULES)
def test_one_token_follows_the_filtered_distribution(name: str) -> None:
    rule = RULES[name]
    rows = [Row(replace(rule, seed=seed), 1, [0]) for seed in range(DRAWS // 2)]
    counts = Counter(choice.token for choice in choose(TARGET[:1].expand(len(rows), -1), rows))
    exact = joint(rule).sum(axis=(1, 2))
    assert p_value([counts[token] for token in range(VOCABULARY)], exact) > FALSE_ALARM


@pytest.mark.parametrize("name", RULES)
def test_coupled_texts_follow_the_joint_distribution_and_not_the_draft(name: str) -> None:
    rule = RULES[name]
    plain = served(rule, DRAFTS["near"], 0, 3, TEXTS)
    assert p_of_texts(plain, joint(rule)) > FALSE_ALARM
    for draft_length in DRAFT_LENGTHS:
        for draft in DRAFTS.values():
            assert served(rule, draft, draft_length, 3, 200) == plain[:200]


# Every draft length under the plain rule, every rule under one of them.
CASES = [("plain", draft_length) for draft_length in DRAFT_LENGTHS] + [
    (name, DRAFT_LENGTHS[index % 4]) for index, name in enumerate(RULES) if name != "plain"
]


@pytest.mark.parametrize(("name", "draft_length"), CASES)
@pytest.mark.parametrize("draft", DRAFTS)
def test_texts_of_the_ratio_test_follow_the_joint_distribution(name: str, draft: str, draft_length: int) -> None:
    rule = replace(RULES[name], acceptance=Acceptance.RATIO)
    texts = served(rule, DRAFTS[draft], draft_length, 3, TEXTS)
    assert p_of_texts(texts, joint(rule)) > FALSE_ALARM
    # Whichever way a text came about, each of its tokens alone must fit too: fewer cells see
    # smaller faults.
    for place in range(3):
        exact = joint(rule).sum(axis=tuple(axis for axis in range(3) if axis != place))
        counts = Counter(text[place] for text in texts)
        assert p_value([counts[token] for token in range(VOCABULARY)], exact) > FALSE_ALARM


def test_the_ratio_test_accepts_as_often_as_the_distributions_overlap() -> None:
    """sum(min(p, q)): neither a draft that is never believed nor one always believed would show in
    the text."""
    rule = replace(RULES["plain"], acceptance=Acceptance.RATIO)
    rules = [replace(rule, seed=seed) for seed in range(DRAWS)]
    draft = choose(FAR_DRAFT[:1].expand(DRAWS, -1), [Row(rule, 1, [0], drafting=True) for rule in rules])
    rows = [
        Row(rule, 1, [0], proposed=Proposed(choice.token, choice.distribution))
        for rule, choice in zip(rules, draft, strict=True)
        if choice.distribution is not None
    ]
    chosen = choose(TARGET[:1].expand(DRAWS, -1), rows)
    rate = np.mean([a.token == b.token for a, b in zip(draft, chosen, strict=True)])
    p, q = (logits[0].double().softmax(-1).numpy() for logits in (TARGET, FAR_DRAFT))
    overlap = np.minimum(p, q).sum()
    assert abs(rate - overlap) < 5 * np.sqrt(overlap * (1 - overlap) / DRAWS)


@pytest.mark.parametrize("planted", ["", "RECOVERY", "ACCEPTANCE"])
def test_the_statistic_sees_noise_shared_with_the_ratio_test(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The known faults: the recovered token, or the coin, is drawn with the noise that drew the
    draft's token."""
    if planted:
        monkeypatch.setattr(ratio, "Domain", SimpleNamespace(**Domain.__members__ | {planted: Domain.PROPOSAL}))
    rule = replace(RULES["plain"], acceptance=Acceptance.RATIO)
    texts = served(rule, FAR_DRAFT, 1, 1, DRAWS)
    assert (p_of_texts(texts, joint(rule).sum(axis=(1, 2))) < FALSE_ALARM) == bool(planted)


@pytest.mark.parametrize("name", ["plain", "top_p", "top_k"])
def test_every_position_of_long_texts_follows_its_conditional_distribution(name: str) -> None:
    """By quantile: the mass below the chosen token plus a fair share of its own is uniform at each
    of 160 positions, and a position's tells nothing of the next one's. The vocabulary is five
    blocks of noise."""
    size, texts, length = 300, 150, 160
    generator = torch.Generator().manual_seed(11)
    table = torch.randn(size, size, generator=generator) * 2
    shares = np.random.default_rng(3).random((length, texts))
    contexts = [[index] for index in range(texts)]
    quantiles = np.zeros((length, texts))
    for place in range(length):
        rows = [Row(replace(RULES[name], seed=seed), place + 1, text) for seed, text in enumerate(contexts)]
        logits = table[[text[-1] for text in contexts]]
        exact = apply_filters(logits, rows).double().softmax(-1).numpy()
        chosen = [choice.token for choice in choose(logits, rows)]
        below = exact.cumsum(axis=1)[range(texts), chosen]
        quantiles[place] = below - (1 - shares[place]) * exact[range(texts), chosen]
        for text, token in zip(contexts, chosen, strict=True):
            text.append(token)
    assert kstest(quantiles.reshape(-1), "uniform").pvalue > FALSE_ALARM
    assert min(kstest(row, "uniform").pvalue for row in quantiles) > FALSE_ALARM
    assert min(kstest(text, "uniform").pvalue for text in quantiles.T) > FALSE_ALARM
    steps = np.corrcoef(quantiles[:-1].reshape(-1), quantiles[1:].reshape(-1))[0, 1]
    assert abs(steps) < 5 / np.sqrt(texts * length)
