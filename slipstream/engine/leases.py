"""Leases: who may keep pages, and until when. A pure table with a clock that tests can turn."""

from __future__ import annotations

import time
from collections.abc import Callable

from slipstream.engine.errors import UnknownHandleError


class Leases:
    """Idle times granted to handles; using a handle renews its lease."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lease: dict[str, float] = {}
        self._ends: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._lease)

    def grant(self, handle: str, seconds: float) -> None:
        """Start a lease."""
        self._lease[handle] = seconds
        self._ends[handle] = self._clock() + seconds

    def renew(self, handle: str) -> None:
        """Start the lease's idle time again. UnknownHandleError if it is not, or no longer, there."""
        if not self.holds(handle):
            raise UnknownHandleError(f"handle {handle!r} is not open: never given, closed, or ended")
        self._ends[handle] = self._clock() + self._lease[handle]

    def holds(self, handle: str) -> bool:
        """Whether there is a lease whose idle time is not over."""
        return handle in self._lease and self._ends[handle] > self._clock()

    def extend(self, handle: str) -> None:
        """Start the idle time again even if it is over: the handle was in use. Nothing happens if there is no lease."""
        if handle in self._lease:
            self._ends[handle] = self._clock() + self._lease[handle]

    def end(self, handle: str) -> None:
        """End a lease; nothing happens if there is none."""
        self._lease.pop(handle, None)
        self._ends.pop(handle, None)

    def ended(self) -> list[str]:
        """Handles whose idle time is over and whose lease has not been ended yet."""
        now = self._clock()
        return [handle for handle, end in self._ends.items() if end <= now]
