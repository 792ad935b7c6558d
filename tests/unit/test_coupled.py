import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling import coupled
from slipstream.sampling.choose import choose
from slipstream.sampling.coupled import accepted_count
from slipstream.sampling.filters import apply_filters
from slipstream.sampling.noise import gumbel
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule


def brute_force(logits: torch.Tensor, rule: SamplingRule, position: int) -> tuple[int, float]:
    """Noise for every token of the vocabulary, no pruning."""
    filtered = apply_filters(logits.unsqueeze(0), [Row(rule, position)])[0].numpy().astype(np.float64)
    count = len(filtered)
    noise = gumbel(
        np.full(count, rule.seed, np.uint64), np.full(count, position, np.uint64), np.arange(count).astype("u8")
    )
    perturbed = filtered + noise
    best = int(perturbed.argmax())
    return best, float(perturbed[best] - np.delete(perturbed, best).max())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 2**31),
    spread=st.floats(0.01, 30),
    temperature=st.floats(0.05, 5),
    top_k=st.sampled_from([0, 1, 7]),
)
def test_pruning_is_exact(seed: int, position: int, spread: float, temperature: float, top_k: int) -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(seed % 1000)) * spread
    rule = SamplingRule(temperature=temperature, top_k=top_k, seed=seed)
    token, margin = brute_force(logits, rule, position)
    choice = choose(logits.unsqueeze(0), [Row(rule, position)])[0]
    assert choice.token == token
    # A pruned runner-up may be further away than the best one kept, never nearer.
    assert choice.margin >= margin
    assert choice.margin == margin or choice.margin == float("inf")


def test_a_token_far_below_the_best_wins_where_its_noise_is_that_much_greater() -> None:
    """Rows that random logits hardly ever bring: the two ends of the noise on two tokens that all others are far below.

    In 16 rows of 150,000 tokens the noise spans more than 15 of its 20.2: pruning any less would show.
    """
    size, rule = 150_000, SamplingRule(temperature=1.0, seed=11)
    tokens = np.arange(size, dtype=np.uint64)
    rows, widest = [], 0.0
    for position in range(16):
        noise = gumbel(np.full(size, rule.seed, np.uint64), np.full(size, position, np.uint64), tokens)
        low, high = int(noise.argmin()), int(noise.argmax())
        span = float(noise[high] - noise[low])
        logits = torch.full((2, size), -1000.0)
        logits[:, high] = 0.0
        logits[0, low], logits[1, low] = span - 0.01, span + 0.01
        wins, loses = choose(logits, [Row(rule, position), Row(rule, position)])
        rows.append((wins.token == high, loses.token == low))
        assert wins.margin == pytest.approx(0.01, abs=1e-4), "the runner-up was looked at too"
        widest = max(widest, span)
    assert rows == [(True, True)] * 16
    assert widest > 15


def test_temperature_zero_is_argmax_and_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0], [2.0, 1.0, 0.0, 9.5]])
    choices = choose(logits, [Row(SamplingRule(), 0), Row(SamplingRule(), 1)])
    assert [c.token for c in choices] == [1, 3]
    assert [c.margin for c in choices] == [0.0, 7.5]


def with_ties(*, tied: bool) -> torch.Tensor:
    logits = torch.randn(5, 400, generator=torch.Generator().manual_seed(8)) * 2
    if tied:
        logits[1, [250, 31, 377]] = logits[3, [90, 4]] = 11.0
    return logits


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("candidate_count", [0, 1, 5])
@pytest.mark.parametrize("drafting", [False, True])
def test_a_greedy_row_chooses_its_largest_logit_and_a_draft_describes_it(
    tied: bool, candidate_count: int, drafting: bool
) -> None:
    logits = with_ties(tied=tied)
    rows = [Row(SamplingRule(), 3, drafting=drafting, candidate_count=candidate_count) for _ in range(5)]
    for row, choice in zip(logits, choose(logits, rows), strict=True):
        values = row.numpy().astype(np.float64)
        first, second, *_ = sorted(values, reverse=True)
        assert choice.token == values.tolist().index(first), "the lower id among equals"
        assert type(choice.token) is int and type(choice.margin) is float, "as they go into messages"
        assert choice.margin == pytest.approx(first - second)
        if not drafting:
            assert (choice.logprob, choice.candidates) == (0.0, ())
            continue
        assert choice.logprob == pytest.approx(-np.log(np.exp(values - first).sum()), abs=1e-5)
        count = max(candidate_count, 2) if candidate_count else 0  # two are looked at anyway, for the margin
        assert [value for _, value in choice.candidates] == sorted(values, reverse=True)[:count]
        assert all(values[token] == value for token, value in choice.candidates)


@pytest.mark.parametrize("candidate_count", [0, 1, 5])
def test_a_draft_describes_what_it_draws_by_its_perturbed_logits(candidate_count: int) -> None:
    logits = with_ties(tied=False)
    rows = [
        Row(SamplingRule(temperature=1.0, seed=seed), 20 + seed, drafting=True, candidate_count=candidate_count)
        for seed in range(5)
    ]
    for values, row, choice in zip(logits.numpy().astype(np.float64), rows, choose(logits, rows), strict=True):
        tokens = np.flatnonzero(values >= values.max() - 8).astype(np.uint64)
        noise = gumbel(np.full_like(tokens, row.rule.seed), np.full_like(tokens, row.position), tokens)
        kept = values[tokens]
        order = np.argsort(-(kept + noise))
        assert choice.token == tokens[order[0]]
        assert type(choice.token) is int and type(choice.margin) is type(choice.logprob) is float
        assert choice.margin == pytest.approx((kept + noise)[order[0]] - (kept + noise)[order[1]])
        assert choice.logprob == pytest.approx(kept[order[0]] - np.log(np.exp(kept).sum()))
        best = order[:candidate_count]
        assert choice.candidates == tuple(zip(tokens[best].tolist(), (kept + noise)[best].tolist(), strict=True))


def test_a_target_looks_down_as_far_as_noise_can_lift_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise's very ends meet in one row of 2^48: so they are put there."""
    ends = (np.array([0.5, 2**24 - 0.5]) / 2**24).tolist()
    low, high = (-np.log(-np.log(u)) for u in ends)
    monkeypatch.setattr(coupled, "gumbel", lambda *key: np.where(key[2] == 0, low, high))
    (choice,) = choose(torch.tensor([[high - low - 1e-4, 0.0]]), [Row(SamplingRule(temperature=1.0), 0)])
    assert (choice.token, choice.logprob, choice.candidates) == (1, 0.0, ()), "only a draft's choice is described"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_has_no_more_candidates_than_tokens_to_choose_from(temperature: float) -> None:
    row = Row(SamplingRule(temperature=temperature), 0, drafting=True, candidate_count=8)
    (choice,) = choose(torch.tensor([[1.0, 3.0, 2.0]]), [row])
    assert sorted(token for token, _ in choice.candidates) == [0, 1, 2]
    assert choice.candidates[0][0] == choice.token


def test_rows_of_different_rules_choose_as_they_would_alone() -> None:
    logits = torch.randn(6, 200, generator=torch.Generator().manual_seed(4)) * 3
    rules = [SamplingRule(temperature=t, seed=i, top_p=p) for i, (t, p) in enumerate([(0, 1), (1, 0.9), (0.3, 1)] * 2)]
    rows = [Row(rule, 5 + index) for index, rule in enumerate(rules)]
    alone = [choose(logits[i : i + 1], rows[i : i + 1])[0] for i in range(6)]
    assert choose(logits, rows) == alone


def test_a_row_of_nan_harms_no_other() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(6))
    logits[1] = float("nan")
    rows = [Row(SamplingRule(temperature=1.0, seed=2), position) for position in (1, 2, 3)]
    got = choose(logits, rows)
    assert [got[0], got[2]] == choose(logits[[0, 2]], [rows[0], rows[2]])


def test_accepted_count_is_the_longest_equal_prefix() -> None:
    assert accepted_count([], [4]) == 0
    assert accepted_count([4, 5], [4, 5, 6]) == 2
    assert accepted_count([4, 5], [4, 6, 6]) == 1
    assert accepted_count([4, 5], [3, 5, 6]) == 0
