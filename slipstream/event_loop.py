"""The event loop of a service, and the threads beside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import uvloop

from slipstream.threads import full_pool

_MOST_THREADS = 8
"""What they do holds the interpreter's lock for the most part, or waits for a disk."""


def run_in_loop(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` with uvloop's loop, and its threads there from the start."""
    count = min(_MOST_THREADS, (os.cpu_count() or 1) + 4)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_default_executor(full_pool(count, "beside-loop"))
        runner.run(main)
