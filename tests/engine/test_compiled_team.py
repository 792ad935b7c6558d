"""The threads of a forward: they share its work, none waits for one that is not there, and a late
one changes nothing."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable

import numba
import pytest
import torch

from slipstream.engine.compiled import team as compiled
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.team import Share, Team
from slipstream.engine.model import Segment
from tests.engine.test_compiled_backend import LENGTH, PAGES, backend_of, built, some_tokens, whole
from tests.tensors import forward

_PATIENCE = 30.0


# Compiled code calls these, and Python cannot.
@numba.njit(nogil=True)  # type: ignore[untyped-decorator] # Numba is untyped
def begin(place: int) -> int:
    return compiled.begin(place)


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def finish(place: int, number: int) -> None:
    compiled.finish(place, number)


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def take(share: Share, phase: int, count: int) -> tuple[int, int]:
    return compiled.take(share, phase, count)


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def complete(share: Share, phase: int, count: int, done: int) -> None:
    compiled.complete(share, phase, count, done)


def shares(team: Team, threads: int, number: int) -> list[Share]:
    return [(thread, threads, 0, team.place, number) for thread in range(threads)]


def taken(share: Share, phase: int, count: int) -> list[int]:
    """Take all units that a thread gets while no other takes any."""
    units: list[int] = []
    while True:
        first, end = take(share, phase, count)
        if first == end:
            return units
        units += range(first, end)


@pytest.mark.parametrize(("threads", "count"), [(1, 7), (2, 1), (3, 2), (2, 12), (5, 64), (7, 1000)])
def test_each_unit_is_taken_once_by_any_thread(threads: int, count: int) -> None:
    team, rng = Team(threads, 3), random.Random(count)
    for phase in (0, 2):
        number = begin(team.place)
        all_shares, units = shares(team, threads, number), list[int]()
        while True:
            first, end = take(rng.choice(all_shares), phase, count)
            if first == end:
                break
            units += range(first, end)
        assert sorted(units) == list(range(count))
        finish(team.place, number)


def test_a_thread_alone_does_the_work_of_those_that_do_not_come() -> None:
    team = Team(4, 1)
    number = begin(team.place)
    leader, *_ = shares(team, 4, number)
    units = taken(leader, 0, 10)
    assert sorted(units) == list(range(10)) and units[:2] == [0, 1]  # its own come first
    complete(leader, 0, 10, len(units))  # and waits for no thread


def test_what_is_begun_is_waited_for() -> None:
    team = Team(2, 1)
    number = begin(team.place)
    leader, helper = shares(team, 2, number)
    first, end = take(helper, 0, 8)
    done = len(taken(leader, 0, 8))
    assert done == 8 - (end - first)
    waiting = threading.Thread(target=complete, args=(leader, 0, 8, done))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    complete(helper, 0, 8, end - first)
    waiting.join(_PATIENCE)
    assert not waiting.is_alive()


def test_who_comes_late_gets_nothing_and_waits_for_nothing() -> None:
    team = Team(2, 2)
    first = begin(team.place)
    leader, late = shares(team, 2, first)
    complete(leader, 0, 4, len(taken(leader, 0, 4)))
    finish(team.place, first)
    assert not taken(late, 0, 4)
    assert not taken(late, 0, 40), "by then the step may say anything"
    assert not taken(late, 1, 40), "no thread has been there in its forward"
    complete(late, 1, 40, 0)
    second = begin(team.place)
    leader, _ = shares(team, 2, second)
    assert not taken(late, 0, 40)
    assert len(taken(leader, 0, 4)) == 4, "and has taken nothing from the next"
    assert len(taken(leader, 1, 40)) == 40


@pytest.mark.parametrize("threads", [2, 9])
def test_more_threads_than_cores_beside_busy_ones_change_no_bit(threads: int) -> None:
    text, rng = some_tokens(LENGTH), random.Random(threads)
    reference = whole(backend_of(built("queries share keys")), text)
    backend, over = backend_of(built("queries share keys"), threads=threads), threading.Event()
    whole(backend, text)
    busy = threading.Thread(target=_compute_until, args=(over,))
    busy.start()
    try:
        for _ in range(400):
            count = rng.choice((1, 1, 2, 9, 30))
            at = rng.randrange(LENGTH - count)
            logits = forward(backend, [Segment(text[at : at + count], at, PAGES, count)])
            assert torch.equal(logits, reference[at : at + count])
    finally:
        over.set()
        busy.join()


def _compute_until(over: threading.Event) -> None:
    while not over.is_set():
        torch.ones(300, 300) @ torch.ones(300, 300)


def test_a_helper_that_never_gets_a_core_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_none(team: Team, walk: Callable[[int], None]) -> None:
        pass

    reference = whole(backend_of(built("queries share keys")), some_tokens(LENGTH))
    monkeypatch.setattr(Team, "start", start_none)
    assert torch.equal(whole(backend_of(built("queries share keys"), threads=3), some_tokens(LENGTH)), reference)


def test_helpers_end_with_their_team() -> None:
    def helpers() -> set[threading.Thread]:
        gc.collect()
        return {thread for thread in threading.enumerate() if thread.name.startswith("helper ")}

    before = helpers()
    backend: CompiledBackend | None = backend_of(built("queries share keys"), threads=4)
    assert backend is not None
    whole(backend, some_tokens(LENGTH))
    started = helpers() - before
    assert len(started) == 3
    backend = None
    deadline = time.monotonic() + _PATIENCE
    while any(thread.is_alive() for thread in started) and time.monotonic() < deadline:
        helpers()
        time.sleep(0.05)
    assert not [thread for thread in started if thread.is_alive()]
