"""Choices from some of a row's log-probabilities are those that the whole row gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import InvalidFieldsError
from slipstream.sampling.choose import choose
from slipstream.sampling.faults import NoTokenToChooseError
from slipstream.sampling.partial.cut import min_p_cut, others_mass, top_k_cut, top_p_cut
from slipstream.sampling.partial.decide import bounded, decide, logprobs_from
from slipstream.sampling.partial.known import PartialRow, Wanted, rounding
from slipstream.sampling.partial.wanted import first_request, joined
from slipstream.sampling.row import VOID, Choice, Row
from slipstream.sampling.rule import Acceptance, SamplingRule
from slipstream.sampling.structure import Structure
from tests.partial_server import AnsweringRow

SIZES = (3, 64, 65, 500, 8193)
OFF = (0, 1.0, 0.0)


def logits_of(seed: int, size: int, spread: float, tied: bool) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=size) * spread
    return (np.round(logits * 2) / 2 if tied else logits).astype(np.float32)


def tokens(size: int) -> st.SearchStrategy[int]:
    return st.integers(0, size - 1)


@st.composite
def rows(draw: st.DrawFn) -> tuple[np.ndarray, Row]:
    size = draw(st.sampled_from(SIZES))
    seed = draw(st.integers(0, 2**63 - 1))
    logits = logits_of(seed % 1000, size, draw(st.floats(0.01, 12)), draw(st.booleans()))
    context = draw(st.lists(tokens(size), max_size=12))
    biased = draw(st.lists(tokens(size), max_size=4, unique=True))
    rule = SamplingRule(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.3, 0.8, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 0, 0, 1, 7, 40])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.999, 0.95, 0.5, 0.02])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5])),
        seed=seed,
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.1, -0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.4, -1.3])),
        logit_bias=tuple((token, draw(st.sampled_from([-100.0, -1.5, 2.5, 40.0]))) for token in biased),
        banned_token_ids=tuple(draw(st.lists(tokens(size), max_size=3))),
        allowed_token_ids=tuple(draw(st.one_of(st.just([]), st.just([]), st.lists(tokens(size), max_size=40)))),
        end_token_ids=tuple(draw(st.lists(tokens(size), max_size=2))),
        first_end_position=draw(st.sampled_from([0, 2**31])),
        first_generated_position=draw(st.integers(0, 12)),
    )
    allowed = None
    if draw(st.integers(0, 3)) == 0:
        allowed = np.random.default_rng(seed % 977).random(size) < draw(st.sampled_from([0.01, 0.5, 0.99]))
    return logits, Row(rule, len(context) + draw(st.integers(0, 2**20)), context, allowed=allowed)


@settings(max_examples=100)
@given(rows(), st.sampled_from([1, 2, 5, 20, None]), st.booleans(), st.booleans(), st.booleans())
def test_the_choice_is_that_of_the_whole_row(
    case: tuple[np.ndarray, Row], limit: int | None, takes_ids: bool, tells_best_id: bool, asks_well: bool
) -> None:
    logits, row = case
    server = AnsweringRow(logits, limit, takes_ids, tells_best_id)
    first = first_request(row, len(logits), most_ids=1024 if takes_ids else 0) if asks_well else Wanted(1)
    found = server.decide(row, first)
    whole = choose(server.logprobs[np.newaxis], [row])[0]
    if isinstance(found, Wanted):
        is_settled_by_ids = (
            takes_ids and row.rule.temperature and (row.rule.top_k, row.rule.top_p, row.rule.min_p) == OFF
        )
        assert limit is not None and not is_settled_by_ids, "more can be had, and it is not asked for"
        return
    assert found.token == whole.token
    assert type(found.fault) is type(whole.fault)
    assert found.margin <= whole.margin
    if whole.fault is None and found.margin > rounding(float(server.logprobs[whole.token]), row.rule.temperature):
        raw = choose(logits[np.newaxis], [row])[0]
        assert found.token == raw.token, "a margin above rounding makes it the raw logits' choice too"


@settings(max_examples=150)
@given(rows(), st.integers(1, 60), st.sets(st.integers(0, 15)))
def test_cuts_bound_the_cuts_of_the_whole_row(case: tuple[np.ndarray, Row], count: int, ids: set[int]) -> None:
    logits, row = case
    row.rule = replace(row.rule, temperature=row.rule.temperature or 0.5)
    server = AnsweringRow(logits, tells_best_id=True)
    asked = Wanted(count, tuple(sorted(each for each in ids if each < len(logits))))
    some, whole = (bounded(server.answer(wanted), row) for wanted in (asked, Wanted(len(logits))))
    if not np.isfinite(whole.most.max()):
        return
    top_k = top_k_cut(some, row.rule)
    exact = top_k_cut(whole, row.rule)
    assert top_k.least <= exact.least == exact.most <= top_k.most
    min_p = min_p_cut(some, row.rule)
    exact_min_p = min_p_cut(whole, row.rule)
    assert min_p.least <= exact_min_p.least == exact_min_p.most <= min_p.most
    kept = whole.most[whole.most >= exact.least].astype(np.float64)
    top_p = top_p_cut(some, row.rule, top_k)
    values = np.sort(kept[kept > -np.inf])[::-1]
    weights = np.exp((values - values[0]) / row.rule.temperature)
    firsts = np.searchsorted(-values, -values)  # the first of equals
    shares = np.concatenate([[0.0], weights.cumsum()])[firsts] / weights.sum() / row.rule.top_p
    assert (values[shares < 1 - 1e-4] >= top_p.least).all(), "a token that is kept is not cut away"
    assert (values[shares > 1 + 1e-4] < top_p.most).all(), "a token that is cut away is not kept"


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.2, 1.0, 4.0]),
    temperature=st.sampled_from([0.4, 0.8, 1.0, 1.3, 3.0]),
    count=st.sampled_from([1, 10, 200]),
    banned_count=st.sampled_from([0, 400]),
    top_k=st.sampled_from([0, 300]),
)
def test_the_mass_of_tokens_that_are_not_listed_is_bounded(
    seed: int, spread: float, temperature: float, count: int, banned_count: int, top_k: int
) -> None:
    server = AnsweringRow(logits_of(seed, 500, spread, False))
    allowed = np.ones(500, dtype=np.bool_)
    allowed[np.random.default_rng(seed).permutation(500)[:banned_count]] = False
    rule = SamplingRule(temperature=temperature, top_k=top_k)
    row = bounded(server.answer(Wanted(count)), Row(rule, 3, allowed=allowed))
    cut = top_k_cut(row, rule)
    values = np.where(allowed, server.logprobs, -np.inf).astype(np.float64)
    if top_k:
        values[values < np.sort(values)[-top_k]] = -np.inf
    values[row.known.token_ids] = -np.inf
    mass = float(np.exp(values / temperature).sum())
    found = others_mass(row, 1 / temperature, 0.0, cut)
    assert found.least <= mass <= found.most
    if temperature == 1 and not banned_count and not top_k:
        assert found.most - found.least < 1e-4, "at temperature 1 it is what is missing to 1"


def test_a_greedy_row_is_decided_by_two_tokens_and_a_tie_by_more() -> None:
    row = Row(SamplingRule(), 7)
    assert first_request(row, 100) == Wanted(2)
    clear = PartialRow.of(100, [(9, -0.5), (3, -1.0)])
    assert decide(clear, row) == Choice(9, 0.5)
    tied = decide(PartialRow.of(100, [(9, -0.75), (3, -0.75)]), row)
    assert tied == Wanted(4, (0, 1, 2, 3, 9)), "an id below 3 may have as much"
    assert decide(PartialRow.of(100, [(9, -0.75), (0, -0.75)]), row) == Choice(0, 0.0), "the lower id of equals"


def test_ids_that_may_win_are_asked_for_and_decide() -> None:
    server = AnsweringRow(logits_of(3, 128_256, 3.0, False))
    rule = SamplingRule(temperature=0.8, seed=5)
    for position in range(40):
        row = Row(rule, position)
        server.requests.clear()
        found = server.decide(row, Wanted(20))
        assert isinstance(found, Choice)
        assert found.token == choose(server.logprobs[np.newaxis], [row])[0].token
        assert len(server.requests) <= 3, "of 128,256 tokens hundreds may win after the first answer"


def test_a_token_that_a_server_adds_to_its_list_bounds_no_other() -> None:
    """Servers add the sampled token, of any rank."""
    likeliest = [(1, -0.1), (2, -3.0)]
    assert PartialRow.of(50, likeliest, [(40, -30.0)]).bound == np.float32(-3.0)


def test_few_allowed_tokens_are_asked_for_by_id_alone() -> None:
    allowed = np.zeros(5000, dtype=np.bool_)
    allowed[[4, 70, 4999]] = True
    row = Row(SamplingRule(temperature=1.0, seed=2), 3, allowed=allowed)
    wanted = first_request(row, 5000)
    assert wanted == Wanted(1, (4, 70, 4999))
    server = AnsweringRow(logits_of(1, 5000, 3.0, False))
    assert server.decide(row, wanted) == choose(server.logprobs[np.newaxis], [row])[0]
    assert len(server.requests) == 1


def test_top_k_is_decided_by_one_more_than_k() -> None:
    server = AnsweringRow(logits_of(4, 5000, 2.0, False))
    row = Row(SamplingRule(temperature=1.5, top_k=40, top_p=0.9, seed=2), 3)
    wanted = first_request(row, 5000, most_ids=0)
    assert wanted == Wanted(41)
    for position in range(50):
        row = replace(row, position=position)
        found = decide(server.answer(wanted), row)
        assert found == choose(server.logprobs[np.newaxis], [row])[0]


def test_a_choice_at_the_edge_of_a_filter_has_no_margin() -> None:
    """Rounding may have moved the edge: the raw logits may choose otherwise."""
    row = Row(SamplingRule(temperature=1.0, top_k=1), 3)
    near = float(np.nextafter(np.float32(-0.7), np.float32(-1)))
    known = PartialRow.of(3, [(0, -0.7), (1, near), (2, -9.0)])
    chosen = {seed: decide(known, replace(row, rule=replace(row.rule, seed=seed))) for seed in range(20)}
    margins = {choice.margin for choice in chosen.values() if isinstance(choice, Choice)}
    assert margins == {0.0}
    far = PartialRow.of(3, [(0, -0.7), (1, -0.9), (2, -9.0)])
    found = decide(far, replace(row, rule=replace(row.rule, top_k=2)))
    assert isinstance(found, Choice)


def test_a_row_that_allows_nothing_is_a_fault_and_a_void_row_is_void() -> None:
    known = PartialRow.of(4, [(0, -0.1)])
    nothing = Row(SamplingRule(), 3, allowed=np.zeros(4, dtype=np.bool_))
    found = decide(known, nothing)
    assert isinstance(found, Choice) and isinstance(found.fault, NoTokenToChooseError)
    void = decide(known, Row(SamplingRule(structure=Structure.of_choices(["a"])), 3))
    assert isinstance(void, Choice) and void.token == VOID and void.fault is None


def test_answers_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="token ids must be from 0 to 3, but 1 to 9 came"):
        PartialRow.of(4, [(9, -0.1), (1, -2.0)])
    for wrong in (0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be numbers of at most 0"):
            PartialRow.of(4, [(0, wrong)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"repetition_penalty": 1.1, "temperature": 0.0}, "repetition_penalty must be 1 .* multiplies raw logits"),
        ({"typical_p": 0.9}, "typical_p must be 1 .* entropy"),
        ({"top_n_sigma": 1.0}, "top_n_sigma must be 0 .* spread"),
        ({"acceptance": Acceptance.RATIO}, "acceptance must be coupled"),
    ],
)
def test_fields_that_need_more_are_refused_by_name(changes: dict[str, object], reason: str) -> None:
    rule = replace(SamplingRule(temperature=1.0), **changes)
    with pytest.raises(InvalidFieldsError, match=reason):
        decide(PartialRow.of(4, [(0, -0.1)]), Row(rule, 1))


def test_greedy_rows_pass_no_filter_and_so_refuse_none() -> None:
    row = Row(SamplingRule(typical_p=0.5, top_n_sigma=1.0, acceptance=Acceptance.RATIO), 1)
    assert decide(PartialRow.of(4, [(2, -0.1), (1, -4.0)]), row) == Choice(2, pytest.approx(3.9))


def test_log_probabilities_are_the_servers_own() -> None:
    known = PartialRow.of(9, [(7, -0.5), (1, -1.5), (3, -1.5)], [(8, -9.0)])
    found = logprobs_from(known, 8, 2)
    assert (found.token, found.logprob, found.top) == (8, -9.0, ((7, -0.5), (1, -1.5)))


def test_one_request_serves_the_rows_of_a_server_that_takes_one() -> None:
    wanted = [Wanted(2, (1, 5)), Wanted(20, (5, 9))]
    assert joined(wanted) == Wanted(20, (1, 5, 9))
