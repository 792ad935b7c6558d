"""A service's loop has all its threads from the start, and keeps them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from slipstream.event_loop import run_in_loop


def test_what_runs_beside_the_loop_starts_no_thread() -> None:
    counts: list[int] = []

    async def main() -> None:
        counts.append(threading.active_count())
        names = await asyncio.gather(*(asyncio.to_thread(lambda: threading.current_thread().name) for _ in range(64)))
        assert all(name.startswith("beside-loop") for name in names)
        counts.append(threading.active_count())

    before = threading.active_count()
    run_in_loop(main())
    assert counts[0] > before
    assert counts[1] == counts[0]
    assert threading.active_count() == before


def test_what_ends_the_main_coroutine_is_raised() -> None:
    async def main() -> None:
        raise ValueError("the end")

    with pytest.raises(ValueError, match="the end"):
        run_in_loop(main())
