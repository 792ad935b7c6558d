"""Rows that threads share: the same choices from any thread, and no waiting for a thread that does
not come."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.sharing import choose_with, share_rows
from tests.tensors import choose

ROWS, VOCABULARY = 8, 100_003


@pytest.fixture
def threads() -> Iterator[int]:
    count = 3
    choose_with(count)
    yield count
    choose_with(1)


@pytest.mark.parametrize(
    "rule",
    [
        SamplingRule(),
        SamplingRule(temperature=1.0, seed=3),
        SamplingRule(temperature=0.8, top_p=0.95, seed=3),
        SamplingRule(temperature=1.0, top_k=50, min_p=0.01, seed=3),
        SamplingRule(temperature=1.0, repetition_penalty=1.2, seed=3),
    ],
)
@pytest.mark.parametrize("drafting", [False, True])
def test_choices_are_the_same_by_one_thread_and_by_several(rule: SamplingRule, drafting: bool, threads: int) -> None:
    logits = (torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2.5).bfloat16()
    rows = [
        Row(rule, 40 + index, list(range(40)), drafting=drafting, candidate_count=3 * drafting) for index in range(ROWS)
    ]
    shared = choose(logits, rows)
    choose_with(1)
    assert choose(logits, rows) == shared


def test_every_row_is_worked_at_once_by_several_threads(threads: int) -> None:
    worked: list[int] = []
    names, met = set(), threading.Barrier(threads, timeout=30)

    def work(start: int, end: int) -> None:
        worked.extend(range(start, end))
        names.add(threading.current_thread().name)
        if end <= threads:  # a piece of each thread's waits for the others': it takes several to go on
            met.wait()

    share_rows(work, ROWS, 2**18)
    assert sorted(worked) == list(range(ROWS)) and len(names) == threads


def test_no_thread_waits_for_a_helper_that_has_other_work(threads: int) -> None:
    free, freed = threading.Event(), []

    def work(start: int, end: int) -> None:
        freed.append(free.wait(30))

    others = [threading.Thread(target=share_rows, args=(work, 2, 2**18)) for _ in range(threads - 1)]
    for other in others:  # each keeps a helper
        other.start()
    worked: list[int] = []
    share_rows(lambda start, end: worked.extend(range(start, end)), ROWS, 2**18)
    free.set()
    for other in others:
        other.join()
    assert sorted(worked) == list(range(ROWS)) and all(freed) and len(freed) == 2 * len(others)


def test_few_logits_are_one_threads(threads: int) -> None:
    calls: list[tuple[int, int]] = []
    share_rows(lambda start, end: calls.append((start, end)), ROWS, 4096)
    assert calls == [(0, ROWS)]


def test_what_a_helper_raises_is_raised(threads: int) -> None:
    raised = threading.Event()

    def work(start: int, end: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert raised.wait(30)  # until a helper has taken a piece
        else:
            raised.set()
            raise ValueError(f"row {start}")

    with pytest.raises(ValueError, match="row"):
        share_rows(work, ROWS, 2**18)
