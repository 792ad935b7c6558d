"""Threads of a pool that are there from the start."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def full_pool(count: int, name: str) -> ThreadPoolExecutor:
    """How many threads a process has is then the same after any load, and a count that grows is one
    that something left behind.

    A pool starts a thread only while all that it has are busy: so each waits here until the last
    has come.
    """
    pool = ThreadPoolExecutor(count, name)
    everyone = threading.Barrier(count + 1)
    for _ in range(count):
        pool.submit(everyone.wait)
    everyone.wait()
    return pool
