"""The ratio test's corners: hostile and narrow distributions, vocabularies of two sizes, draws that
repeat themselves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from orchestrator.speculation.proposal import Proposal
from slipstream.sampling.kernel import Domain, coin
from slipstream.sampling.outcome import TokenDistribution, distribution_fault
from slipstream.sampling.row import Proposed, Row
from slipstream.sampling.rule import Acceptance, SamplingRule
from tests.tensors import choose

RULE = SamplingRule(temperature=1.0, seed=3, acceptance=Acceptance.RATIO)


def test_the_draft_sends_what_it_drew_from_cut_to_its_likeliest() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(1)) * 3
    narrow = SamplingRule(temperature=1.0, seed=3, acceptance=Acceptance.RATIO, proposal_top_k=7)
    (choice,) = choose(logits, [Row(narrow, 4, drafting=True)])
    assert choice.distribution is not None
    assert set(choice.distribution.tokens) == set(logits[0].topk(7).indices.tolist())
    assert abs(sum(choice.distribution.probabilities) - 1) < 1e-6
    assert distribution_fault(choice.token, choice.distribution, 500) is None
    assert choose(logits, [Row(narrow, 4, drafting=True)]) == [choice], "a repeated round must not roll again"


def test_each_kind_of_draw_has_noise_of_its_own() -> None:
    """What a seed says is kept: another number, or one number for two kinds, is another
    `SAMPLING_VERSION`."""
    assert {name: int(kind) for name, kind in Domain.__members__.items()} == {
        "FIRST": 0,
        "SECOND": 1,
        "OTHERS": 2,
        "PROPOSAL": 3,
        "ACCEPTANCE": 4,
        "RECOVERY": 5,
    }
    kinds = (Domain.PROPOSAL, Domain.ACCEPTANCE, Domain.RECOVERY)
    coins = [[coin(seed, 7, kind) for seed in range(2000)] for kind in kinds]
    for index, one in enumerate(coins):
        for other in coins[:index]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(2000)


def drawn(weights: np.ndarray, seed: int, position: int, domain: Domain) -> int:
    """The first index at which the weights so far exceed the coin's share of them."""
    where, so_far = coin(seed, position, domain) * float(weights.sum()), 0.0
    for index, weight in enumerate(weights.tolist()):
        so_far += weight
        if so_far > where:
            return index
    raise AssertionError


def test_a_draft_draws_from_what_it_sends_with_noise_of_its_own() -> None:
    logits = torch.randn(4, 90, generator=torch.Generator().manual_seed(1)) * 2
    logits[2, 5:] = -torch.inf
    rules = [replace(RULE, seed=11 * index, proposal_top_k=k) for index, k in enumerate([3, 200, 40, 7])]
    rows = [Row(rule, 30 + index, drafting=True) for index, rule in enumerate(rules)]
    for row, values, choice in zip(rows, logits.numpy().astype(np.float64), choose(logits, rows), strict=True):
        count = min(row.rule.proposal_top_k, int(np.isfinite(values).sum()))
        tokens = np.argsort(-values)[:count].astype(np.uint64)
        q = np.exp(values[tokens]) / np.exp(values[tokens]).sum()
        assert choice.distribution is not None
        assert choice.distribution.tokens == tuple(tokens.tolist())
        assert type(choice.distribution.probabilities) is tuple and type(choice.token) is int
        assert choice.distribution.probabilities == pytest.approx(q.tolist(), rel=1e-6)
        assert all(p == float(np.float32(p)) for p in choice.distribution.probabilities), "as it travels"
        sent = np.array(choice.distribution.probabilities)
        assert choice.token == tokens[drawn(sent, row.rule.seed, row.position, Domain.PROPOSAL)]
        assert choice.margin == float("inf")


def by_the_formula(p: np.ndarray, q: np.ndarray, x: int, seed: int, position: int) -> int:
    """x with min(1, p(x)/q(x)), else a draw from max(0, p - q)."""
    if coin(seed, position, Domain.ACCEPTANCE) < p[x] / q[x]:
        return x
    return drawn(np.maximum(p - q, 0), seed, position, Domain.RECOVERY)


def test_the_test_accepts_and_recovers_by_the_formula() -> None:
    """A few hundred rows at once, each with its own seed and position; probabilities are taken by
    their sum."""
    rng, size, count = np.random.default_rng(4), 12, 300
    logits = torch.tensor(rng.normal(size=(count, size)) * 2, dtype=torch.float32)
    rows, expected, proposed = [], [], []
    for index in range(count):
        q = np.zeros(size)
        tokens = rng.choice(size, 5, replace=False)
        q[tokens] = rng.dirichlet(np.ones(5))
        x = int(rng.choice(size, p=q))
        sent = TokenDistribution(tuple(tokens.tolist()), tuple((q[tokens] * 0.7).tolist()))
        rows.append(Row(replace(RULE, seed=index // 2), 50 + index, proposed=Proposed(x, sent)))
        p = logits[index].double().softmax(0).numpy()
        expected.append(by_the_formula(p, q, x, index // 2, 50 + index))
        proposed.append(x)
    assert [choice.token for choice in choose(logits, rows)] == expected
    accepted = sum(token == x for token, x in zip(expected, proposed, strict=True))
    assert 50 < accepted < 250, "both ways out are there"


def test_where_rounding_leaves_nothing_of_p_less_q_the_token_is_drawn_from_p() -> None:
    logits = torch.full((2, 4), -torch.inf)
    logits[:, 2] = 0.0
    logits[1, 3] = 0.0
    hardly = TokenDistribution((1, 2), (1e-30, 1.0))
    rows = [Row(RULE, position, proposed=Proposed(1, hardly)) for position in (5, 6)]
    assert [choice.token for choice in choose(logits, rows)] == [2, 3]


def test_a_rejected_token_is_never_the_recovered_one_and_equal_distributions_accept_all() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -torch.inf]])
    p = logits.double().softmax(-1)[0].tolist()
    for seed in range(200):
        rule = SamplingRule(temperature=1.0, seed=seed, acceptance=Acceptance.RATIO)
        certain = Proposed(0, TokenDistribution((0,), (1.0,)))
        (choice,) = choose(logits, [Row(rule, 1, proposed=certain)])
        assert choice.token in (0, 1, 2)
        same = Proposed(1, TokenDistribution((0, 1, 2), tuple(p[:3])))
        assert choose(logits, [Row(rule, 1, proposed=same)])[0].token == 1
        impossible = Proposed(3, TokenDistribution((3,), (1.0,)))
        assert choose(logits, [Row(rule, 1, proposed=impossible)])[0].token != 3


def test_a_proposal_ends_at_a_token_that_the_target_lacks() -> None:
    proposal = Proposal(
        (3, 4, 11, 5),
        tuple(TokenDistribution((token, 10), (0.75, 0.25)) for token in (3, 4, 11, 5)),
    )
    usable = proposal.usable(8, vocabulary_size=10)
    assert usable.tokens == (3, 4)
    assert usable.distributions == (TokenDistribution((3,), (0.75,)), TokenDistribution((4,), (0.75,)))
    assert usable.fault(10) is None
    assert proposal.usable(1, vocabulary_size=20).tokens == (3,)


def test_distributions_that_cannot_be_are_told() -> None:
    nan = float("nan")
    for token, distribution in (
        (3, TokenDistribution((3, 4), (0.5,))),
        (3, TokenDistribution((3, 3), (0.5, 0.5))),
        (3, TokenDistribution((3,), (nan,))),
        (3, TokenDistribution((3,), (0.0,))),
        (3, TokenDistribution((3,), (2.0,))),
        (3, TokenDistribution((4,), (1.0,))),
        (3, TokenDistribution((3, 99), (0.5, 0.5))),
        (3, TokenDistribution((-1, 3), (0.5, 0.5))),
    ):
        assert distribution_fault(token, distribution, 10) is not None, distribution
        assert Proposal((token,), (distribution,)).fault(10) is not None
    assert Proposal((3, 4)).fault(10) is not None
