"""The ratio test's corners: hostile and narrow distributions, vocabularies of two sizes, draws that repeat themselves."""

import torch

from orchestrator.speculation.proposal import Proposal
from slipstream.sampling.choose import choose
from slipstream.sampling.outcome import TokenDistribution, distribution_fault
from slipstream.sampling.row import Proposed, Row
from slipstream.sampling.rule import Acceptance, SamplingRule

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


def test_a_proposal_ends_at_a_token_the_target_lacks_and_its_distributions_lose_the_others_like_it() -> None:
    proposal = Proposal(
        (3, 4, 11, 5),
        tuple(TokenDistribution((token, 12), (0.75, 0.25)) for token in (3, 4, 11, 5)),
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
