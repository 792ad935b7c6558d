"""Work on text: short texts at once, longer ones on threads with a bounded queue.

The tokenizer takes half a microsecond and 120 bytes of memory a character, and releases Python's
lock meanwhile. A chat template may take long, within its limits, and never runs on the event loop.
Long conversations have a thread and a process of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from orchestrator.errors import OverloadedError
from orchestrator.sessions.conversation.codec import LONG

SHORT = 2_000
"""Length in characters of a text that is encoded at once: that takes up to a millisecond."""

MOST_WAITING = 16 * 2**20
"""Characters that may wait, in all texts together."""

T = TypeVar("T")


class TextWork:
    """The threads that work on text, for all sessions of a process."""

    def __init__(self) -> None:
        self._longer = ThreadPoolExecutor(1, "text")
        self._longest = ThreadPoolExecutor(1, "long-text")
        self._rendered = ThreadPoolExecutor(2, "chat-template")
        self._waiting = 0

    async def run(self, length: int, work: Callable[[], T], *, renders: bool = False) -> T:
        """Return what ``work`` on so many characters returns; with ``renders`` it begins with a
        chat template.

        OverloadedError if too many characters wait already.
        """
        if length <= SHORT and not renders:
            return work()
        if self._waiting and self._waiting + length > MOST_WAITING:
            raise OverloadedError(f"{self._waiting} characters of prompts wait to be tokenized", limit="text")
        shorter = self._rendered if renders else self._longer
        threads = self._longest if length > LONG else shorter
        self._waiting += length
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        finally:
            self._waiting -= length
