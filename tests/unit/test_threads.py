"""How many threads compute a model when no setting says it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream import threads


@pytest.mark.parametrize(("value", "count"), [("3", 3), ("2,4", 2), ("", 2), ("0", 2), ("many", 2)])
def test_threads_are_omp_num_threads_or_the_cores(
    value: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four processors of two cores, of which each runs two threads."""
    for processor in range(4):
        (tmp_path / str(processor)).write_text(f"{processor % 2},{processor % 2 + 2}\n")
    monkeypatch.setattr(threads, "_SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads.default_threads() == count


def test_a_processor_of_unknown_core_counts_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads.default_threads() == 3


def test_ranks_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(threads, "_core_of", str)
    assert [threads.default_threads(count) for count in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert threads.default_threads(2) == 6
