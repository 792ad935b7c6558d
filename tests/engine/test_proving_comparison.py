"""The proof's comparison sees one token, one bit, one missing turn, one silent disturbance, one
round answered in two ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from proving.comparison import Verdict, compare
from proving.disturbances import ALL
from proving.pairs import PAIRS
from proving.report import Circumstances, markdown, sentence
from proving.results import Account, Generated, Reference, ResultStore
from proving.schedule import DTYPES, LEAST_PROMPTS, TEMPERATURES, Cell, plan

TOKEN_COUNT = 16


@pytest.fixture
def cells() -> list[Cell]:
    return plan([50] * LEAST_PROMPTS, 0, ALL)


@pytest.fixture
def store(cells: list[Cell], tmp_path: Path) -> ResultStore:
    """A run without any difference."""
    store = ResultStore(tmp_path)
    random_numbers = np.random.default_rng(0)
    for cell in cells:
        shape = (len(cell.turns), TOKEN_COUNT)
        tokens = random_numbers.integers(0, 4096, shape, dtype=np.int32)
        logprobs, margins = (random_numbers.random(shape, dtype=np.float32) for _ in range(2))
        store.save_reference(cell.index, Reference(tokens, logprobs, margins))
        strikes = {disturbance.name: 2 for disturbance in ALL}
        store.save_served(cell.index, Generated(tokens.copy(), logprobs.copy()), Account(strikes=strikes))
    return store


def verdict_of(cells: list[Cell], store: ResultStore) -> Verdict:
    return compare(cells, ALL, store)


def test_equal_bits_everywhere_are_a_proof(cells: list[Cell], store: ResultStore) -> None:
    verdict = verdict_of(cells, store)
    assert verdict.proven
    assert (verdict.total.prompt_count, verdict.total.token_count) == (LEAST_PROMPTS, LEAST_PROMPTS * TOKEN_COUNT)
    assert {row.name: row.prompt_count for row in verdict.by_condition} == {
        **{f"{dtype}, temperature {t:g}": LEAST_PROMPTS // 4 for dtype in DTYPES for t in TEMPERATURES},
        **dict.fromkeys(PAIRS, LEAST_PROMPTS // 2),
    }
    assert sentence(verdict) == f"{LEAST_PROMPTS} prompts, {LEAST_PROMPTS * TOKEN_COUNT} tokens: not one bit differs."


@pytest.mark.parametrize("token", [True, False])
def test_a_token_or_the_last_bit_of_a_log_probability_shows_where_it_is(
    cells: list[Cell], store: ResultStore, token: bool
) -> None:
    cell = cells[2]
    kept = store.served(cell.index)
    reference = store.reference(cell.index)
    assert kept is not None and reference is not None
    served, account = kept
    if token:
        served.tokens[3, 7] ^= 1
        served.logprobs[3, 9] = 0  # later, so not the first
    else:
        served.logprobs[3, 7] = np.nextafter(served.logprobs[3, 7], np.float32(2))
    store.save_served(cell.index, served, account)
    verdict = verdict_of(cells, store)
    assert not verdict.proven
    turn, met = list(cell.met())[3]
    (difference,) = verdict.total.differences
    assert (difference.prompt, difference.position, difference.token) == (turn.prompt, 7, token)
    assert difference.margin == reference.margins[3, 7]
    assert {row.name for row in verdict.by_disturbance if row.differences} == {disturbance.name for disturbance in met}
    text = markdown(verdict, Circumstances("make prove", "abc", 0, LEAST_PROMPTS, TOKEN_COUNT, 60))
    what = "token" if token else "log-probability"
    assert f"prompt {turn.prompt}, position 7, {what}, margin {difference.margin:.4g}" in text


def test_missing_log_probabilities_are_a_difference(cells: list[Cell], store: ResultStore) -> None:
    reference = store.reference(0)
    assert reference is not None
    store.save_served(0, Generated(reference.tokens, np.full_like(reference.logprobs, np.nan)), Account())
    scored = [turn for turn in cells[0].turns if all(disturbance.scored for disturbance in turn.disturbances)]
    assert len(verdict_of(cells, store).total.differences) == len(scored) > 0


def test_a_disturbance_that_never_struck_fails_the_run(cells: list[Cell], store: ResultStore) -> None:
    for cell in cells:
        kept = store.served(cell.index)
        assert kept is not None
        kept[1].strikes["one session"] = 0
        store.save_served(cell.index, *kept)
    verdict = verdict_of(cells, store)
    assert not verdict.proven and "never struck: one session" in sentence(verdict)


def test_a_cell_that_was_not_run_and_a_complaint_fail_the_run(cells: list[Cell], store: ResultStore) -> None:
    (store.directory / "served-0001.npz").unlink()
    kept = store.served(2)
    assert kept is not None
    kept[1].complaints.append("prompt 3 got no answer")
    store.save_served(2, *kept)
    assert verdict_of(cells, store).complaints == ["cell 1 has not been run", "prompt 3 got no answer"]
    assert not verdict_of(cells, store).proven
