"""Who gets in whose way: by processors in common, and threads for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream import processors
from slipstream.processors import Processors, device_processor, own_processors


def on(numbers: range, thread_count: int, machine: str = "m") -> Processors:
    return Processors(machine, frozenset(numbers), thread_count)


@pytest.mark.parametrize(
    ("one", "other", "short"),
    [
        (on(range(2), 2), on(range(2), 2), True),
        (on(range(2), 1), on(range(2), 1), False),
        (on(range(2), 2), on(range(2), 1), True),
        (on(range(64), 8), on(range(64), 8), False),
        (on(range(64), 64), on(range(64), 1), True),
        (on(range(2), 2), on(range(2, 4), 2), False),
        (on(range(3), 3), on(range(2, 4), 2), True),
        (on(range(2), 2), on(range(2), 2, machine="another"), False),
        (Processors(), Processors(), False),
        (Processors(), on(range(2), 2), False),
    ],
)
def test_threads_are_short_of_processors_where_they_share_some_and_are_more(
    one: Processors, other: Processors, short: bool
) -> None:
    assert one.are_short_beside(other) is short
    assert other.are_short_beside(one) is short


def test_two_models_on_one_accelerator_are_in_each_others_way() -> None:
    first, second = device_processor("first"), device_processor("second")
    assert first.are_short_beside(device_processor("first"))
    assert not first.are_short_beside(second)
    assert not first.are_short_beside(own_processors(64))


def test_a_process_says_the_processors_that_it_may_use() -> None:
    first = min(os.sched_getaffinity(0))
    program = "from slipstream.processors import own_processors; print(own_processors(3))"
    pinned = subprocess.run(
        ["taskset", "--cpu-list", str(first), sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()
    here = own_processors(3)
    assert here.machine and here.numbers == os.sched_getaffinity(0)
    assert pinned == repr(Processors(here.machine, frozenset({first}), 3))


def test_who_computes_nothing_here_or_cannot_tell_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert own_processors(0) == Processors()
    monkeypatch.setattr(processors, "_BOOT_ID", tmp_path / "nothing")
    assert own_processors(3) == Processors()
