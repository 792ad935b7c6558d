"""Counts of threads, and pools whose threads are there from the start."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


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


def default_threads() -> int:
    """Return the threads that compute a model unless a setting says it: OMP_NUM_THREADS, or else one
    for each processor core that this process may use."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if said.isdecimal() and int(said):
        return int(said)
    try:
        own = os.sched_getaffinity(0)
    except AttributeError:  # no Linux
        return os.cpu_count() or 1
    return len({_core_of(processor) for processor in own})


def _core_of(processor: int) -> str:
    """The numbers of all processors of a core: two, where it runs two threads."""
    try:
        return Path(_SIBLINGS.format(processor)).read_text()
    except OSError:
        return str(processor)
