"""The load generator's own load. If it is the limit, its figures are not the server's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_LOOK_SECONDS = 0.02
_BUSY_SHARE = 0.85
_LATE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """The client's own load during a run."""

    processor_share: float = 0.0
    """Processor time of this process, in processors. It has one thread that works."""
    loop_lag_p99: float = 0.0
    """Seconds by which the event loop woke late: the 99th percentile of many looks."""

    @property
    def limited(self) -> bool:
        """Return whether the client was too busy for its figures to be the server's."""
        return self.processor_share > _BUSY_SHARE or self.loop_lag_p99 > _LATE_SECONDS


@dataclass(slots=True)
class ClientWatch:
    """Measures the client from its start on."""

    _lags: list[float] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _spent: float = field(default_factory=time.process_time)

    def load(self) -> ClientLoad:
        """Return the load so far."""
        elapsed = time.monotonic() - self._began
        lags = sorted(self._lags)
        lag = lags[min(len(lags) - 1, int(len(lags) * 0.99))] if lags else 0.0
        return ClientLoad((time.process_time() - self._spent) / elapsed if elapsed else 0.0, lag)

    async def look(self) -> None:
        """Measure how late the event loop wakes, until it is cancelled."""
        while True:
            due = time.monotonic() + _LOOK_SECONDS
            await asyncio.sleep(_LOOK_SECONDS)
            self._lags.append(max(0.0, time.monotonic() - due))


@asynccontextmanager
async def watched_client() -> AsyncIterator[ClientWatch]:
    """Measure the client inside."""
    watch = ClientWatch()
    looking = asyncio.create_task(watch.look())
    try:
        yield watch
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
