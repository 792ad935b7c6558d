"""Faults in what a peer sends: the error, its count by field, and a log line at a bounded rate."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError

log = logging.getLogger(__name__)

_SAY_AGAIN_SECONDS = 10.0


class PeerFaultError(PeerError):
    """A peer sent a value that it cannot mean (metadata: field).

    UNAVAILABLE: such a peer is as good as away. Its circuit breaker opens, and no caller is told
    that its request was wrong.
    """

    def __init__(self, field: str, requirement: str) -> None:
        super().__init__(Code.UNAVAILABLE, Reason.PEER_FAULT, f"{field} {requirement}", {"field": field})
        self.field = field


class PeerFaults:
    """The faults of one peer."""

    def __init__(self, who: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Name the peer ``who`` in the log."""
        self.counts: Counter[str] = Counter()
        """Faults so far, by the field that was wrong."""
        self._who = who
        self._clock = clock
        self._quiet_until = float("-inf")
        self._unsaid = 0

    def note(self, fault: PeerFaultError) -> None:
        """Count a fault. The first is logged, and from then on one every ten seconds."""
        self.counts[fault.field] += 1
        now = self._clock()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last line)" if self._unsaid else ""
        log.error("%s sent what cannot be: %s%s; it counts as away", self._who, fault, more)
        self._quiet_until, self._unsaid = now + _SAY_AGAIN_SECONDS, 0
