"""Log lines about callers of another wire version, once for each caller: orchestrators retry every
second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from slipstream.errors import WireVersionError

log = logging.getLogger(__name__)

_QUIET_SECONDS = 600.0
_MOST_CALLERS = 256
"""Most callers that are remembered. Further callers are not logged, so that a caller with ever new
versions fills neither memory nor log."""


class RefusedVersions:
    """Callers, by host and version, that have been logged lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[tuple[str, int], float] = {}
        """Time of the log line, oldest first."""

    def log_once(self, peer: str, version: int, error: WireVersionError) -> None:
        """Log a refused call of a gRPC ``peer``, like ``ipv4:10.0.0.1:5000``."""
        now, caller = self._clock(), (host_of(peer), version)
        for each, told in list(self._told.items()):
            if told > now - _QUIET_SECONDS:
                break
            del self._told[each]
        if caller in self._told or len(self._told) >= _MOST_CALLERS:
            return
        self._told[caller] = now
        log.warning("a caller at %s is refused: %s", peer, error)


def host_of(peer: str) -> str:
    """Return a peer's address without its port, which is another for each connection."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer
