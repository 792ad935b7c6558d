"""What has come for whoever computes, and the bell that wakes the thread that waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from slipstream.engine.job import Job

Entry = Job | Callable[[], None]


class Inbox:
    """Anybody puts in and then rings; who computes waits and then takes. To be rung for nothing does no harm."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come."""
        return not self._entries

    def put(self, entry: Entry) -> None:
        """Something comes. Nobody is woken by that."""
        self._entries.append(entry)

    def take(self) -> list[Entry]:
        """All that has come, in order."""
        taken = []
        while self._entries:
            taken.append(self._entries.popleft())
        return taken

    def ring(self) -> None:
        """Wake who waits, or who will."""
        if (
            self._bell.empty()
        ):  # what rings already is heard before anything is taken; who never rests hears nothing for days
            self._bell.put(None)

    def wait(self, seconds: float | None) -> None:
        """Until it rings, or for so long."""
        with suppress(Empty):
            self._bell.get(timeout=seconds)
