"""The queue of work for the model thread, and the signal that wakes the thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from slipstream.engine.job import Job
from slipstream.engine.stop_flag import StopFlag

Entry = Job | Callable[[], None]


class Inbox:
    """A queue that any thread may fill. The filling thread then calls `wake`; the computing thread
    calls `wait` and then `drain`. A `wake` without work is harmless."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self.stop_flag = StopFlag()
        """The flag that stops a multi-step run. It is set while there may be work to take."""
        # Held until `wake` is called. `queue.SimpleQueue` would not do: its `get` waits for ever if
        # its timeout has passed before the call begins (CPython 3.11, the implementation in C).
        self._asleep = Lock()
        self._asleep.acquire()

    @property
    def is_empty(self) -> bool:
        """True if there is no entry."""
        return not self._entries

    def put(self, entry: Entry) -> None:
        """Add an entry. This does not wake the thread."""
        self._entries.append(entry)
        self.stop_flag.set()

    def drain(self) -> list[Entry]:
        """Take out all entries, in order of arrival."""
        self.stop_flag.clear()
        taken = []
        while self._entries:
            taken.append(self._entries.popleft())
        return taken

    def wake(self) -> None:
        """Wake the thread that waits, or that will wait next."""
        if self._asleep.locked():
            with suppress(RuntimeError):  # another thread has released it in between
                self._asleep.release()

    def wait(self, seconds: float | None) -> None:
        """Wait for `wake`, or for ``seconds``."""
        self._asleep.acquire(timeout=-1 if seconds is None else seconds)
