"""Rows that several threads choose for: compiled code lets go of Python's lock, and a row depends
on no other, so that the thread that computes it changes no bit.

Rows are handed out in pieces, to the caller first. The caller never waits for a thread that has
not begun: where another process has its core, the caller does all of the work itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from slipstream.threads import full_pool

_PIECE_LOGITS = 256 * 1024
"""At least what a piece has: a third of a millisecond, several times what handing it over takes."""
_MOST_PIECES = 16
"""Each is taken under Python's lock, which threads then hand to one another."""
_MOST_THREADS = 8
"""Sixteen took longer beside a GPU (docs/history/gpu.md)."""


class _Helpers:
    """Helper threads of this process."""

    def __init__(self) -> None:
        self.count = 0
        self.pool: ThreadPoolExecutor | None = None


_helpers = _Helpers()


def choose_with(threads: int) -> None:
    """From now on choices are computed by at most so many threads, the caller's among them. One
    until this is called."""
    count = min(threads, _MOST_THREADS) - 1
    if count == _helpers.count:
        return
    if _helpers.pool is not None:
        _helpers.pool.shutdown()
    _helpers.count, _helpers.pool = count, full_pool(count, "choose") if count > 0 else None


def share_rows(work: Callable[[int, int], object], row_count: int, row_logits: int) -> None:
    """Call ``work(start, end)`` for rows from ``start`` to before ``end`` until all have been
    worked at. Returns when all calls have; raises what one of them has raised. A row takes about as
    long as to sum the weights of ``row_logits`` tokens."""
    if _helpers.pool is None or row_count <= (
        size := max(1, _PIECE_LOGITS // row_logits, -(-row_count // _MOST_PIECES))
    ):
        work(0, row_count)
        return
    starts = deque(range(0, row_count, size))

    def work_on() -> None:
        while (start := _next_of(starts)) is not None:
            work(start, min(start + size, row_count))

    helping = [_helpers.pool.submit(work_on) for _ in range(min(_helpers.count, len(starts) - 1))]
    try:
        work_on()
    finally:
        for each in helping:
            if not each.cancel():
                each.result()


def _next_of(starts: deque[int]) -> int | None:
    """Return the next row, or None. Another thread may take the last one at any moment."""
    try:
        return starts.popleft()
    except IndexError:
        return None
