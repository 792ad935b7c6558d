"""A service's loop has all its threads from the start, and keeps them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from slipstream.event_loop import run_in_loop


def test_what_runs_beside_the_loop_starts_no_thread() -> None:
    """Threads of earlier tests may end meanwhile: grpc's poller outlives its last channel for a
    while."""
    before = set(threading.enumerate())
    beside: list[set[threading.Thread]] = []

    async def main() -> None:
        beside.append(set(threading.enumerate()) - before)
        names = await asyncio.gather(*(asyncio.to_thread(lambda: threading.current_thread().name) for _ in range(64)))
        assert all(name.startswith("beside-loop") for name in names)
        beside.append(set(threading.enumerate()) - before)

    run_in_loop(main())
    assert beside[0]
    assert beside[1] == beside[0]
    assert set(threading.enumerate()) <= before


def test_what_ends_the_main_coroutine_is_raised() -> None:
    async def main() -> None:
        raise ValueError("the end")

    with pytest.raises(ValueError, match="the end"):
        run_in_loop(main())
