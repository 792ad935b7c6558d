"""The event loop of a service, and the threads beside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import uvloop

from slipstream.threads import full_pool

_MOST_THREADS = 8
"""Most threads beside the loop. Their work mostly holds the interpreter's lock or waits for a
disk."""


def run_in_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as `asyncio.run` does, on uvloop's loop. All threads of its pool are there
    from the start."""
    count = min(_MOST_THREADS, (os.cpu_count() or 1) + 4)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_default_executor(full_pool(count, "beside-loop"))
        runner.run(main)
