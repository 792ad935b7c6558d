import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling.coupled import SLACK, accepted_count
from slipstream.sampling.faults import LogitsNotFiniteError
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling_fields import MAX_TEMPERATURE, MIN_TEMPERATURE
from tests.oracle import apply_filters, field
from tests.tensors import choose


def brute_force(logits: torch.Tensor, rule: SamplingRule, position: int) -> tuple[int, float]:
    """Noise for every token of the vocabulary, filters over all of it."""
    left = apply_filters(logits.unsqueeze(0), [Row(rule, position)])[0].numpy().astype(np.float64)
    scores = left + field(rule.seed, position, len(left))
    best = int(scores.argmax())
    return best, float(scores[best] - np.delete(scores, best).max())


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 2**31),
    size=st.sampled_from([3, 64, 65, 500, 8193, 9000]),
    spread=st.floats(0.01, 30),
    tied=st.booleans(),
    temperature=st.floats(0.05, 5),
    top_k=st.sampled_from([0, 0, 1, 7, 300]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.02]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
)
def test_choosing_by_blocks_finds_what_sorting_everything_finds(
    seed: int,
    position: int,
    size: int,
    spread: float,
    tied: bool,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed % 1000)) * spread
    if tied:
        logits = (logits * 2).round() / 2
    rule = SamplingRule(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    token, margin = brute_force(logits, rule, position)
    choice = choose(logits.unsqueeze(0), [Row(rule, position)])[0]
    assert choice.token == token
    if top_p == 1:
        assert choice.margin == pytest.approx(min(margin, SLACK), abs=1e-9), "a near tie is seen to be one"
    others = [Row(SamplingRule(temperature=1.0, seed=other), position) for other in (1, 2)]
    beside = choose(torch.stack([logits, logits.flip(0), -logits]), [Row(rule, position), *others])[0]
    assert beside == choice, "to the bit, beside any other rows"


def test_a_large_vocabulary_is_searched_as_well_as_a_small_one() -> None:
    logits = torch.randn(128_256, generator=torch.Generator().manual_seed(1)) * 3
    for position, top_p in enumerate([1.0, 1.0, 0.9, 0.6, 0.1]):
        rule = SamplingRule(temperature=1.0, seed=4, top_p=top_p)
        assert choose(logits.unsqueeze(0), [Row(rule, position)])[0].token == brute_force(logits, rule, position)[0]


def test_a_token_far_below_the_best_wins_where_its_noise_is_that_much_greater() -> None:
    """Rows that random logits hardly ever bring: the two ends of the noise on two tokens that all
    others are far below."""
    size, rule = 150_000, SamplingRule(temperature=1.0, seed=11)
    rows, widest = [], 0.0
    for position in range(8):
        noise = field(rule.seed, position, size)
        low, high = int(noise.argmin()), int(noise.argmax())
        span = float(noise[high] - noise[low])
        logits = torch.full((2, size), -1000.0)
        logits[:, high] = 0.0
        logits[0, low], logits[1, low] = span - 0.01, span + 0.01
        wins, loses = choose(logits, [Row(rule, position), Row(rule, position)])
        rows.append((wins.token == high, loses.token == low))
        assert wins.margin == pytest.approx(0.01, abs=1e-4), "the runner-up was looked at too"
        widest = max(widest, span)
    assert rows == [(True, True)] * 8
    assert widest > 14


@pytest.mark.parametrize("top_p", [0.2, 0.6])
def test_equally_likely_tokens_at_the_border_of_a_top_p_all_stay(top_p: float) -> None:
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    rows = [Row(SamplingRule(temperature=1.0, seed=seed, top_p=top_p), 3) for seed in range(300)]
    seen = {choice.token for choice in choose(logits.expand(300, -1), rows)}
    assert seen == ({0} if top_p == 0.2 else {0, 1, 2, 3})


def test_temperature_zero_is_argmax_and_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0], [2.0, 1.0, 0.0, 9.5]])
    choices = choose(logits, [Row(SamplingRule(), 0), Row(SamplingRule(), 1)])
    assert [c.token for c in choices] == [1, 3]
    assert [c.margin for c in choices] == [0.0, 7.5]


def with_ties(*, tied: bool, size: int = 400) -> torch.Tensor:
    logits = torch.randn(5, size, generator=torch.Generator().manual_seed(8)) * 2
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
        assert [value for _, value in choice.candidates] == sorted(values, reverse=True)[:candidate_count]
        assert all(values[token] == value for token, value in choice.candidates)


@pytest.mark.parametrize("candidate_count", [0, 1, 5])
@pytest.mark.parametrize("cut", [{}, {"top_k": 9}, {"min_p": 0.1}])
@pytest.mark.parametrize("size", [400, 9000])
def test_a_draft_describes_what_it_draws_by_its_scores(size: int, candidate_count: int, cut: dict[str, float]) -> None:
    logits = with_ties(tied=False, size=size)
    rules = [SamplingRule(temperature=0.9, seed=seed, **cut) for seed in range(5)]
    rows = [Row(rule, 20 + rule.seed, drafting=True, candidate_count=candidate_count) for rule in rules]
    for values, row, choice in zip(apply_filters(logits, rows), rows, choose(logits, rows), strict=True):
        scores = values.numpy().astype(np.float64) + field(row.rule.seed, row.position, size)
        assert choice.token == int(scores.argmax())
        assert type(choice.token) is int and type(choice.margin) is type(choice.logprob) is float
        assert choice.logprob == pytest.approx(float(values[choice.token] - values.logsumexp(0)), abs=1e-5)
        assert [token for token, _ in choice.candidates[:1]] == [choice.token][:candidate_count]
        known = [scores[token] for token, _ in choice.candidates]
        assert [score for _, score in choice.candidates] == pytest.approx(known)
        assert known == sorted(known, reverse=True) and np.isfinite(known).all()
        near = int((scores > scores.max() - 3).sum())
        assert min(candidate_count, near) <= len(known) <= candidate_count, "all that are near are among them"


def test_only_a_drafts_choice_is_described() -> None:
    (choice,) = choose(with_ties(tied=False)[:1], [Row(SamplingRule(temperature=1.0), 0, candidate_count=3)])
    assert (choice.logprob, choice.candidates) == (0.0, ())


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


@pytest.mark.parametrize("size", [5, 64, 4_100, 9_000])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_of_any_dtype_and_layout_chooses_as_its_float32_does(size: int, temperature: float) -> None:
    logits = (torch.randn(3, 2 * size, generator=torch.Generator().manual_seed(6)) * 3)[:, ::2]
    rows = [Row(SamplingRule(temperature=temperature, seed=5, top_p=0.9), position) for position in range(3)]
    for cast in (logits.bfloat16(), logits.half(), logits.double(), logits):
        assert choose(cast, rows) == choose(cast.float().contiguous(), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", [0, 63, 64, 99])
@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf")])
def test_one_logit_that_is_no_finite_number_spoils_its_row_and_no_other(
    bad: float, place: int, dtype: torch.dtype
) -> None:
    logits = torch.randn(2, 100, generator=torch.Generator().manual_seed(6)).to(dtype)
    logits[1, place] = bad
    chosen = choose(logits, [Row(SamplingRule(temperature=1.0, seed=2), 7)] * 2)
    assert chosen[0].fault is None and isinstance(chosen[1].fault, LogitsNotFiniteError)


@pytest.mark.parametrize("drafting", [False, True])
def test_logits_of_any_size_choose_without_overflow(drafting: bool) -> None:
    """The largest that float32 and bfloat16 hold, at the lowest and the highest temperature."""
    logits = torch.full((1, 200), -3e38)
    logits[0, [20, 150]] = torch.tensor([3e38, 2.9e38])
    for temperature in (MIN_TEMPERATURE, 1.0, MAX_TEMPERATURE):
        rule = SamplingRule(temperature=temperature, seed=3, top_p=0.99, min_p=0.01, top_k=5)
        for held in (logits, logits.bfloat16()):
            (choice,) = choose(held / 1e6 if temperature < 1 else held, [Row(rule, 4, drafting=drafting)])
            assert choice.token == 20
            assert np.isfinite(choice.logprob)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_is_found_where_every_logit_over_the_temperature_is_too_low_for_a_number(dtype: torch.dtype) -> None:
    """A model that is damaged may compute it. Compiled code checks no index: there must be a
    token."""
    logits = torch.full((20, 200), -3e38, dtype=dtype)
    logits[:, 150] = -2e38
    rows = [Row(SamplingRule(temperature=MIN_TEMPERATURE, top_k=1, top_p=0.9, seed=seed), 4) for seed in range(20)]
    assert {choice.token for choice in choose(logits, rows)} == {150}


def test_accepted_count_is_the_longest_equal_prefix() -> None:
    assert accepted_count([], [4]) == 0
    assert accepted_count([4, 5], [4, 5, 6]) == 2
    assert accepted_count([4, 5], [4, 6, 6]) == 1
    assert accepted_count([4, 5], [3, 5, 6]) == 0
