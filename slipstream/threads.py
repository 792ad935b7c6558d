"""Counts of threads, and pools whose threads are there from the start."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def full_pool(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool that has all of its threads from the start. The number of a process's threads
    is then the same under any load, and a number that grows is a leak.

    A pool starts a thread only while all others are busy. So each thread waits here until the last
    one has started.
    """
    pool = ThreadPoolExecutor(count, name)
    all_started = threading.Barrier(count + 1)
    for _ in range(count):
        pool.submit(all_started.wait)
    all_started.wait()
    return pool


def default_threads(process_count: int = 1) -> int:
    """Return how many threads compute a model by default: OMP_NUM_THREADS, or else one for each
    processor core that this process may use, shared out to ``process_count`` processes."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if said.isdecimal() and int(said):
        return int(said)
    try:
        own = os.sched_getaffinity(0)
    except AttributeError:  # no Linux
        return max(1, (os.cpu_count() or 1) // process_count)
    return max(1, len({_core_of(processor) for processor in own}) // process_count)


def _core_of(processor: int) -> str:
    """Return the numbers of all processors of a core. There are two, if the core runs two
    threads."""
    try:
        return Path(_SIBLINGS.format(processor)).read_text()
    except OSError:
        return str(processor)
