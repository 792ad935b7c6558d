"""What has come for whoever computes, and the bell that wakes the thread that waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from slipstream.engine.job import Job
from slipstream.engine.stop_flag import StopFlag

Entry = Job | Callable[[], None]


class Inbox:
    """Anybody puts in and then rings; who computes waits and then takes. To be rung for nothing
    does no harm."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self.stop_flag = StopFlag()
        """Said while there may be something to take."""
        # Held until it rings. No `queue.SimpleQueue`: its `get` waits for ever where its seconds
        # are over before it has begun (CPython 3.11, queues implemented in C).
        self._silence = Lock()
        self._silence.acquire()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come."""
        return not self._entries

    def put(self, entry: Entry) -> None:
        """Something comes. Nobody is woken by that."""
        self._entries.append(entry)
        self.stop_flag.set()

    def drain(self) -> list[Entry]:
        """All that has come, in order."""
        self.stop_flag.clear()
        taken = []
        while self._entries:
            taken.append(self._entries.popleft())
        return taken

    def wake(self) -> None:
        """Wake who waits, or who will."""
        if self._silence.locked():
            with suppress(RuntimeError):  # it rings already: another has come between
                self._silence.release()

    def wait(self, seconds: float | None) -> None:
        """Until it rings, or for so long."""
        self._silence.acquire(timeout=-1 if seconds is None else seconds)
