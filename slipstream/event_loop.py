"""The event loop of a service, and the threads beside it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop

_MOST_THREADS = 8
"""What they do holds the interpreter's lock for the most part, or waits for a disk."""


def run_in_loop(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` with uvloop's loop, and its threads there from the start: how many a process has is then the same after any
    load, and a count that grows is one that something left behind."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_default_executor(_full_pool())
        runner.run(main)


def _full_pool() -> ThreadPoolExecutor:
    """A pool starts a thread only while all that it has are busy: so each waits here until the last has come."""
    count = min(_MOST_THREADS, (os.cpu_count() or 1) + 4)
    pool = ThreadPoolExecutor(count, "beside-loop")
    everyone = threading.Barrier(count + 1)
    for _ in range(count):
        pool.submit(everyone.wait)
    everyone.wait()
    return pool
