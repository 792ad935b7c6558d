"""Leases: which handles may keep pages, and until when. A pure table; tests can set its clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.engine.errors import UnknownHandleError


@dataclass(eq=False, slots=True)
class _Lease:
    seconds: float
    end: float


class Leases:
    """Idle times granted to handles. Use of a handle renews its lease."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._leases: dict[str, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, handle: str, seconds: float) -> None:
        """Start a lease."""
        self._leases[handle] = _Lease(seconds, self._clock() + seconds)

    def renew(self, handle: str) -> None:
        """Start the lease's idle time again. UnknownHandleError if there is no live lease."""
        lease, now = self._leases.get(handle), self._clock()
        if lease is None or lease.end <= now:
            raise UnknownHandleError("this handle is not open: it was never opened, was closed, or its lease has ended")
        lease.end = now + lease.seconds

    def is_live(self, handle: str) -> bool:
        """True if the handle has a lease whose idle time is not over."""
        lease = self._leases.get(handle)
        return lease is not None and lease.end > self._clock()

    def extend(self, handle: str) -> None:
        """Start the idle time again even if it is over, because the handle was in use. Does nothing
        if there is no lease."""
        lease = self._leases.get(handle)
        if lease is not None:
            lease.end = self._clock() + lease.seconds

    def remove(self, handle: str) -> None:
        """Remove a lease. Does nothing if there is none."""
        self._leases.pop(handle, None)

    def expired(self) -> list[str]:
        """Return the handles whose idle time is over and whose lease was not removed yet."""
        now = self._clock()
        return [handle for handle, lease in self._leases.items() if lease.end <= now]
