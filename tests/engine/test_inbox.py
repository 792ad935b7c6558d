"""What wakes the thread that computes: nothing is missed, and nothing gathers while it never
rests."""

from __future__ import annotations

import threading

import pytest

from slipstream.engine.inbox import Inbox


def test_who_never_waits_hears_one_ring() -> None:
    inbox = Inbox()
    for _ in range(10_000):
        inbox.wake()
    inbox.wait(10)
    waiting = threading.Thread(target=inbox.wait, args=[30], daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive(), "it rang twice"
    inbox.wake()
    waiting.join(30)
    assert not waiting.is_alive()


@pytest.mark.timeout(60)
def test_the_shortest_wait_ends() -> None:
    """Its seconds may be over before it has begun. A queue's `get` then waited for ever, and an
    item in work with it."""
    inbox = Inbox()
    for seconds in (1e-9, 1e-7, 1e-6, 3e-6, 1e-5):
        for _ in range(5_000):
            inbox.wake()
            inbox.wait(10)
            inbox.wait(seconds)


def test_what_is_put_in_and_rung_for_is_never_missed() -> None:
    """Two put in as fast as they can; who waits would wait for ever for the last one."""
    inbox, count, taken = Inbox(), 20_000, 0

    def put() -> None:
        for _ in range(count):
            inbox.put(put)
            inbox.wake()

    putting = [threading.Thread(target=put, daemon=True) for _ in range(2)]
    for thread in putting:
        thread.start()
    while taken < 2 * count:
        inbox.wait(10)
        came = len(inbox.drain())
        assert came or any(thread.is_alive() for thread in putting), "a ring was missed"
        taken += came
    assert inbox.is_empty


def test_who_computes_is_interrupted_while_something_waits() -> None:
    inbox = Inbox()
    assert not inbox.stop_flag.is_set
    inbox.put(list)
    assert inbox.stop_flag.is_set
    inbox.drain()
    assert not inbox.stop_flag.is_set
