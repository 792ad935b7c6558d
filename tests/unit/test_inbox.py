"""What wakes the thread that computes: nothing is missed, and nothing gathers while it never rests."""

from __future__ import annotations

import threading

from slipstream.engine.inbox import Inbox


def test_who_never_waits_leaves_no_rings_behind() -> None:
    inbox = Inbox()
    for _ in range(10_000):
        inbox.ring()
    assert inbox._bell.qsize() == 1
    inbox.wait(10)
    assert inbox._bell.empty()


def test_what_is_put_in_and_rung_for_is_never_missed() -> None:
    """Two put in as fast as they can; who waits would wait for ever for the last one."""
    inbox, count, taken = Inbox(), 20_000, 0

    def put() -> None:
        for _ in range(count):
            inbox.put(put)
            inbox.ring()

    putting = [threading.Thread(target=put, daemon=True) for _ in range(2)]
    for thread in putting:
        thread.start()
    while taken < 2 * count:
        inbox.wait(10)
        came = len(inbox.take())
        assert came or any(thread.is_alive() for thread in putting), "a ring was missed"
        taken += came
    assert inbox.is_empty
